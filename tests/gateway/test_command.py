"""``postroom gateway`` and ``postroom serve --grpc``, as users start them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from postroom.gateway import postroom_pb2 as pb
from tests.cli.commands import failed_with, invoke
from tests.gateway.gateways import Stub
from tests.gateway.processes import free_address, running
from tests.remote.certificates import Authority


@contextmanager
def _channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> Iterator[Any]:
    made = (
        grpc.insecure_channel(address)
        if credentials is None
        else grpc.secure_channel(address, credentials)
    )
    with made as channel:
        grpc.channel_ready_future(channel).result(60)
        yield Stub(channel)


def test_a_gateway_serves_a_folder(tmp_path: Path) -> None:
    address = free_address()
    arguments = ["gateway", "--path", str(tmp_path / "data"), "--listen", address]
    for value in (b"", b"v"):
        with running(*arguments, "--listen-insecure"), _channel(address) as stub:
            assert stub.Get(pb.GetRequest(key=b"k")).value == value
            stub.Put(pb.PutRequest(key=b"k", value=b"v"))


def test_a_node_offers_grpc_in_its_process(tmp_path: Path) -> None:
    node, address = free_address(), free_address()
    data = str(tmp_path / "data")
    with running("serve", "--insecure", "--data", data, "--listen", node, "--grpc", address):
        with _channel(address) as stub:
            stub.Put(pb.PutRequest(key=b"k", value=b"v"))
        beside = free_address()
        arguments = ("gateway", "--connect", node, "--insecure", "--listen", beside)
        with running(*arguments), _channel(beside) as stub:
            assert stub.Get(pb.GetRequest(key=b"k")).value == b"v"


def test_a_node_with_tls_and_tokens_asks_them_of_callers_of_grpc(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("127.0.0.1")
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader\nwriter\n")
    tokens.chmod(0o600)
    key.chmod(0o600)
    node, address = free_address(), free_address()
    own, own_key = authority.issue("a-client")
    credentials = grpc.ssl_channel_credentials(
        authority.ca.read_bytes(), own_key.read_bytes(), own.read_bytes()
    )
    arguments = [
        "serve", "--data", str(tmp_path / "data"), "--listen", node, "--grpc", address,
        "--tls-ca", str(authority.ca), "--tls-certificate", str(certificate),
        "--tls-key", str(key), "--token-file", str(tokens),
    ]  # fmt: skip
    with running(*arguments), _channel(address, credentials) as stub:
        writer = (("authorization", "Bearer writer"),)
        stub.Put(pb.PutRequest(key=b"k", value=b"v"), metadata=writer)
        reader = (("authorization", "Bearer reader"),)
        answer = stub.Get(pb.GetRequest(key=b"k"), metadata=reader)
        assert answer.value == b"v"
        with pytest.raises(grpc.RpcError) as told:
            stub.Put(pb.PutRequest(key=b"k", value=b"w"), metadata=reader)
        assert told.value.code() == grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as told:
            stub.Get(pb.GetRequest(key=b"k"))
        assert told.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_node_with_roles_of_certificates_asks_them_of_callers_of_grpc(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("127.0.0.1")
    roles = tmp_path / "roles"
    roles.write_text("write *\n")
    node, address = free_address(), free_address()
    own, own_key = authority.issue("a-client")
    credentials = grpc.ssl_channel_credentials(
        authority.ca.read_bytes(), own_key.read_bytes(), own.read_bytes()
    )
    arguments = [
        "serve", "--data", str(tmp_path / "data"), "--listen", node, "--grpc", address,
        "--tls-ca", str(authority.ca), "--tls-certificate", str(certificate),
        "--tls-key", str(key), "--role-file", str(roles),
    ]  # fmt: skip
    with running(*arguments), _channel(address, credentials) as stub:
        stub.Put(pb.PutRequest(key=b"k", value=b"v"))
        roles.write_text("read *\n")
        with pytest.raises(grpc.RpcError) as told:
            stub.Put(pb.PutRequest(key=b"k", value=b"w"))
        assert told.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_node_whose_port_of_grpc_is_taken_ends_with_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "postroom", "serve", "--insecure", "--data"]
        command += [str(tmp_path / "data"), "--listen", free_address(), "--grpc", address]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"postroom: cannot listen at {address} (Address already in use): is the")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--path", "data", "--listen", "127.0.0.1:1"], "--listen-insecure"),
        (["--path", "data", "--listen", "nowhere", "--listen-insecure"], "HOST:PORT"),
        (
            ["--path", "data", "--listen", "127.0.0.1:1", "--listen-certificate", "c",
             "--listen-key", "k"],
            "--listen-ca",
        ),
        (
            ["--path", "data", "--listen", "127.0.0.1:1", "--listen-insecure", "--token-file", "t",
             "--role-file", "r"],
            "--role-file",
        ),
        (["--listen", "127.0.0.1:1"], "--path"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_wrong_usage(arguments: list[str], words: str) -> None:
    assert failed_with(invoke("gateway", *arguments), 2, words)


def test_a_gateway_makes_no_store_if_a_file_of_its_certificate_is_missing(tmp_path: Path) -> None:
    folder, missing, tokens = tmp_path / "data", str(tmp_path / "no.pem"), tmp_path / "tokens"
    tokens.write_text("secret\n")
    tokens.chmod(0o600)
    done = invoke(
        "gateway", "--path", str(folder), "--listen", free_address(), "--token-file", str(tokens),
        "--listen-certificate", missing, "--listen-key", missing,
    )  # fmt: skip
    assert failed_with(done, 1, f"cannot read {missing}: No such file or directory; nothing was")
    assert not folder.exists()


def test_a_gateway_makes_no_store_if_another_program_has_its_address(tmp_path: Path) -> None:
    folder, address = tmp_path / "data", free_address()
    arguments = ("--path", str(folder), "--listen", address, "--listen-insecure")
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert failed_with(invoke("gateway", *arguments), 1, f"cannot listen at {address}")
    assert not folder.exists()


def test_a_gateway_stops_at_a_signal(tmp_path: Path) -> None:
    address = free_address()
    arguments = ["gateway", "--path", str(tmp_path / "data"), "--listen", address]
    with running(*arguments, "--listen-insecure") as process, _channel(address) as stub:
        stream = stub.Watch(pb.WatchRequest(start=b"k"))
        next(stream)
        process.send_signal(signal.SIGINT)
        with pytest.raises(grpc.RpcError):
            next(stream)
        assert process.wait(60) == 0


def test_without_its_libraries_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['grpc_reflection'] = None\n"
        "from postroom.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "gateway", "--path", "data", "--listen", "a:1"]
    done = subprocess.run(
        [*command, "--listen-insecure"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert 'pip install ".[grpc]"' in done.stderr


def test_a_gateway_of_a_folder_that_is_open_elsewhere_says_so_at_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    arguments = ("gateway", "--path", folder, "--listen-insecure", "--listen")
    command = [sys.executable, "-m", "postroom", *arguments, free_address()]
    with running(*arguments, free_address()):
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "is open in process" in second.stderr
