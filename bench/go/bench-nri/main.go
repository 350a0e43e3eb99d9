// Command bench-nri times CreateContainer in NRI's own adaptation, the code that containerd runs.
//
//	bench-nri measure PLAN               the runtime: one adaptation per lane of the plan, called alternately
//	bench-nri plugin SOCKET ADJUSTMENT   the rival: answers every creation with the same adjustment
//
// The plan is JSON in a file, the results are JSON on standard output. ADJUSTMENT "-": one variable, and the
// plugin validates nothing.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/proto"
)

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "measure":
		measure(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "plugin":
		serve(os.Args[2], os.Args[3])
	default:
		must(fmt.Errorf("measure PLAN | plugin SOCKET ADJUSTMENT"))
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-nri:", err)
		os.Exit(1)
	}
}

// minimal answers every creation with one adjustment, and subscribes to nothing else.
type minimal struct {
	adjustment *api.ContainerAdjustment
}

func (p *minimal) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.adjustment, nil, nil
}

// validating also receives every adjustment for validation, and accepts all of them.
type validating struct {
	minimal
}

func (p *validating) ValidateContainerAdjustment(context.Context, *api.ValidateContainerAdjustmentRequest) error {
	return nil
}

// serve runs the plugin until the runtime exits.
func serve(socket, file string) {
	answer := &api.ContainerAdjustment{Env: []*api.KeyValue{{Key: "BENCH", Value: "1"}}}
	var plugin any = &minimal{answer}
	if file != "-" {
		data, err := os.ReadFile(file)
		must(err)
		answer.Reset()
		must(proto.Unmarshal(data, answer))
		plugin = &validating{minimal{answer}}
	}
	s, err := stub.New(plugin, stub.WithPluginName("rival"), stub.WithPluginIdx("50"), stub.WithSocketPath(socket))
	must(err)
	must(s.Run(context.Background()))
}
