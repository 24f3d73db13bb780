"""The definition of the service, and the code that is generated from it."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from postroom.gateway import postroom_pb2 as pb
from tests.gateway.gateways import on_loop, started

ROOT = Path(__file__).parents[2]
FOLDER = Path("postroom/gateway")
GENERATED = ("postroom_pb2.py", "postroom_pb2.pyi")


def test_the_committed_code_is_what_the_generator_gives(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs,
         str(FOLDER / "postroom.proto")],
        check=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    for name in GENERATED:
        made = (tmp_path / FOLDER / name).read_text()
        assert (ROOT / FOLDER / name).read_text() == made, f"run 'make proto': {name}"


def test_every_message_field_and_call_has_a_comment() -> None:
    lines = (ROOT / FOLDER / "postroom.proto").read_text().splitlines()
    inside = False
    for before, line in itertools.pairwise(lines):
        stripped = line.strip()
        inside = inside or stripped.startswith("service")
        if not inside or not re.match(r"(message|enum|service|rpc|oneof)\b|.*= \d+;$", stripped):
            continue
        assert before.strip().startswith("//"), line


@on_loop
async def test_reflection_describes_the_service() -> None:
    """A client lists services, asks for the file of one, and builds its messages."""
    async with started() as it:
        stub = reflection_pb2_grpc.ServerReflectionStub(it.channel)

        async def asked(request: reflection_pb2.ServerReflectionRequest) -> Any:
            call = stub.ServerReflectionInfo()
            await call.write(request)
            answer = await call.read()
            await call.done_writing()
            return answer

        listed = await asked(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {each.name for each in listed.list_services_response.service}
        assert "postroom.v1.Postroom" in names
        assert "grpc.health.v1.Health" in names
        pool = descriptor_pool.DescriptorPool()
        symbol = "postroom.v1.Postroom"
        found = await asked(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(each)
            for each in found.file_descriptor_response.file_descriptor_proto
        ]
        for each in sorted(files, key=lambda file: len(file.dependency)):
            pool.Add(each)
        service = pool.FindServiceByName(symbol)
        assert {method.name for method in service.methods} == {
            method.name for method in pb.DESCRIPTOR.services_by_name["Postroom"].methods
        }


@on_loop
async def test_the_health_service_says_serving() -> None:
    async with started() as it:
        stub = health_pb2_grpc.HealthStub(it.channel)
        for service in ("", "postroom.v1.Postroom"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
