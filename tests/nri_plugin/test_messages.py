"""The committed classes of nri_plugin.messages match the .proto files."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tests.support import ROOT

_NAMES = ("deviceplugin", "dra", "nri", "pluginregistration", "podresources", "ttrpc")


@pytest.mark.parametrize("name", _NAMES)
def test_generated_messages_are_current(name: str, tmp_path: Path) -> None:
    """Descriptors are compared, because they do not change with the generator's version."""
    out = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, f"nri_plugin/messages/{name}.proto"], cwd=ROOT, check=True)
    (regenerated,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    module = importlib.import_module(f"nri_plugin.messages.{name}_pb2")
    committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    regenerated.ClearField("source_code_info")
    for message in regenerated.message_type:
        for each in (message, *message.nested_type):
            for field in each.field:
                field.ClearField("json_name")
    assert regenerated == committed
