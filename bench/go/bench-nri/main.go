// Command bench-nri times CreateContainer in NRI's own adaptation, the code that containerd runs.
//
//	bench-nri measure PLAN   the runtime: one adaptation per lane of the plan, called alternately
//	bench-nri plugin ...     the rival: a plugin that answers every creation with the same adjustment
//
// The plan is JSON in a file, the results are JSON on standard output.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("measure PLAN | plugin SOCKET ADJUSTMENT"))
	}
	switch os.Args[1] {
	case "measure":
		measure(os.Args[2])
	case "plugin":
		serve(os.Args[2], os.Args[3])
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench-nri:", err)
	os.Exit(1)
}
