package main

import (
	"context"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/proto"
)

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

// serve runs the plugin until the runtime exits; file "-": an adjustment of one variable, without validation.
func serve(socket, file string) {
	answer := &api.ContainerAdjustment{Env: []*api.KeyValue{{Key: "BENCH", Value: "1"}}}
	var plugin any = &minimal{answer}
	if file != "-" {
		data, err := os.ReadFile(file)
		if err != nil {
			fail(err)
		}
		answer.Reset()
		if err := proto.Unmarshal(data, answer); err != nil {
			fail(err)
		}
		plugin = &validating{minimal{answer}}
	}
	s, err := stub.New(plugin, stub.WithPluginName("rival"), stub.WithPluginIdx("50"), stub.WithSocketPath(socket))
	if err != nil {
		fail(err)
	}
	if err := s.Run(context.Background()); err != nil {
		fail(err)
	}
}
