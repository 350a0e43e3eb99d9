package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"google.golang.org/protobuf/proto"
)

// A lane is the adaptation at a socket, and the pods of its calls; lanes may share one.
type lane struct {
	Name      string
	Socket    string
	Plugins   int32 // number that must be synchronised before the measurement
	Annotated bool
	Started   bool // whether the measured time includes the start of its containers
	Claimed   bool // whether its containers have a share of a claim, for one pod
}

type plan struct {
	Lanes       []lane
	Annotations map[string]string
	Labels      map[string]string
	CDI         string // the CDI device of the claim's share
	Save        string // file for the adjustment of the lane that `Saves`, for the rival
	Bundles     string // directory of the bundles of started containers, as in containerd
}

// A round is one line on standard input: call each lane `Count` times alternately, `PauseUs` apart.
type round struct {
	Lanes   []string
	Count   int
	PauseUs int
	Save    bool
}

type runtime struct {
	lane
	*running
	serial int
}

type running struct {
	adaptation *adaptation.Adaptation
	plugins    counting
}

// counting is the number of serving plugins, updated when the runtime has registered one.
type counting struct {
	atomic.Int32
}

func (c *counting) RecordPluginInvocation(_, _ string, _ error)                               {}
func (c *counting) RecordPluginLatency(_, _ string, _ time.Duration)                          {}
func (c *counting) RecordPluginAdjustments(_, _ string, _ *api.ContainerAdjustment, _, _ int) {}
func (c *counting) UpdatePluginCount(count int)                                               { c.Store(int32(count)) }

// silent drops the adaptation's log except errors; this program is built without WASM on purpose.
type silent struct{}

func (silent) Debugf(context.Context, string, ...interface{}) {}
func (silent) Infof(context.Context, string, ...interface{})  {}
func (silent) Warnf(context.Context, string, ...interface{})  {}
func (silent) Errorf(_ context.Context, format string, args ...interface{}) {
	if !strings.Contains(format, "WASM") {
		fmt.Fprintf(os.Stderr, "nri: "+format+"\n", args...)
	}
}

const loops = 100_000

var sink uint64

// calibrate is a fixed amount of work without any plugin.
func calibrate() time.Duration {
	begun := time.Now()
	x := uint64(88172645463325252)
	for i := 0; i < loops; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	sink += x
	return time.Since(begun)
}

func measure(file string) {
	nrilog.Set(silent{})
	data, err := os.ReadFile(file)
	must(err)
	var what plan
	must(json.Unmarshal(data, &what))
	runtimes := map[string]*runtime{}
	listening := map[string]*running{}
	for i, l := range what.Lanes {
		if listening[l.Socket] == nil {
			listening[l.Socket] = start(l.Socket)
		}
		runtimes[l.Name] = &runtime{lane: l, running: listening[l.Socket], serial: i * 1_000_000}
	}
	fmt.Println("listening")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r round
		must(json.Unmarshal(lines.Bytes(), &r))
		times := map[string][]int64{"calibration": {}}
		for _, name := range r.Lanes {
			waitForPlugins(runtimes[name])
		}
		for i := 0; i < r.Count; i++ {
			times["calibration"] = append(times["calibration"], calibrate().Nanoseconds())
			for _, name := range r.Lanes {
				took, adjust := runtimes[name].create(&what)
				times[name] = append(times[name], took.Nanoseconds())
				if r.Save {
					save(what.Save, adjust)
				}
				time.Sleep(time.Duration(r.PauseUs) * time.Microsecond)
			}
		}
		must(json.NewEncoder(os.Stdout).Encode(times))
	}
	must(lines.Err())
}

func start(socket string) *running {
	r := &running{}
	sync := func(ctx context.Context, done adaptation.SyncCB) error {
		_, err := done(ctx, nil, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return nil, nil
	}
	none := filepath.Join(filepath.Dir(socket), "none")
	a, err := adaptation.New("containerd", "v2.4.2", sync, update,
		adaptation.WithSocketPath(socket), adaptation.WithMetrics(&r.plugins),
		adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	must(err)
	must(a.Start())
	r.adaptation = a
	return r
}

func waitForPlugins(r *runtime) {
	for deadline := time.Now().Add(30 * time.Second); r.plugins.Load() < r.Plugins; {
		if time.Now().After(deadline) {
			must(fmt.Errorf("%s: waited 30 s for its plugin", r.Name))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *runtime) must(err error) {
	if err != nil {
		must(fmt.Errorf("%s: %w", r.Name, err))
	}
}

// create times one CreateContainer and its start; then it removes the container, untimed.
func (r *runtime) create(what *plan) (time.Duration, *api.ContainerAdjustment) {
	r.serial++
	ctx := context.Background()
	pod, container := r.subject(what)
	if r.Started {
		bundle := writeBundle(what.Bundles, container.Id)
		defer os.RemoveAll(bundle)
	}
	begun := time.Now()
	answer, err := r.adaptation.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: container})
	if err == nil && r.Started {
		err = r.adaptation.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: container})
	}
	took := time.Since(begun)
	r.must(err)
	if r.Plugins > 0 && (r.Annotated || r.Claimed) && len(answer.GetAdjust().GetEnv()) == 0 {
		must(fmt.Errorf("%s: no adjustment came: the plugin was dropped", r.Name))
	}
	container.Mounts = append(container.Mounts, answer.GetAdjust().GetMounts()...)
	r.must(r.adaptation.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: container}))
	return took, answer.GetAdjust()
}

// subject is a pod and a container as containerd 2.4 describes them.
func (r *runtime) subject(what *plan) (*api.PodSandbox, *api.Container) {
	id := fmt.Sprintf("%s%060d", "beef", r.serial)
	pod := &api.PodSandbox{
		Id: "sandbox-" + id, Name: "bench", Uid: fmt.Sprintf("uid-%d", r.serial), Namespace: "default",
		Labels:      map[string]string{"app": "bench", "io.kubernetes.pod.name": "bench"},
		Annotations: map[string]string{"kubernetes.io/config.seen": "2026-01-01T00:00:00Z"},
		Pid:         4711,
	}
	if r.Annotated {
		for key, value := range what.Annotations {
			pod.Annotations[key] = value
		}
		for key, value := range what.Labels {
			pod.Labels[key] = value
		}
	}
	container := &api.Container{
		Id: id, PodSandboxId: pod.Id, Name: "main",
		Labels: map[string]string{"io.kubernetes.container.name": "main"},
		Args:   []string{"python", "-m", "train", "--epochs", "3"},
		Env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=bench"},
		Linux:  &api.LinuxContainer{CgroupsPath: "/kubepods/besteffort/pod" + id},
	}
	if r.Claimed {
		pod.Uid = "uid-claimed"
		container.CDIDevices = []*api.CDIDevice{{Name: what.CDI}}
	}
	for i := 0; i < 20; i++ {
		container.Env = append(container.Env, fmt.Sprintf("SERVICE_%d_PORT=tcp://10.96.0.%d:443", i, i))
	}
	for _, path := range []string{"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup", "/etc/hosts",
		"/etc/hostname", "/etc/resolv.conf", "/dev/shm", "/var/run/secrets/kubernetes.io/serviceaccount", "/dev/termination-log"} {
		container.Mounts = append(container.Mounts, &api.Mount{
			Destination: path, Type: "bind", Source: "/var/lib/kubelet/pods/" + id + path,
			Options: []string{"rbind", "rprivate", "rw"},
		})
	}
	return pod, container
}

// writeBundle writes the files that an agent reads for a created container; its first process is PID 1.
func writeBundle(bundles, id string) string {
	bundle := filepath.Join(bundles, id)
	config := `{"process":{"args":["sleep"],"cwd":"/"},"linux":{"namespaces":[{"type":"pid"}]}}`
	must(os.MkdirAll(bundle, 0o755))
	for name, text := range map[string]string{"init.pid": "1", "config.json": config} {
		must(os.WriteFile(filepath.Join(bundle, name), []byte(text), 0o600))
	}
	return bundle
}

func save(path string, adjust *api.ContainerAdjustment) {
	data, err := proto.Marshal(adjust)
	must(err)
	must(os.WriteFile(path, data, 0o600))
}
