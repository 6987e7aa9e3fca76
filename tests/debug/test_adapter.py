"""The Debug Adapter Protocol, by a small client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ROOT / "tests" / "data" / "releases"
Body = dict[str, Any]


class Client:
    """An editor."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jitree", "debug", "--dap"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self.sequence = 0
        self.events: list[Body] = []

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self.process.stdin.flush()

    def read(self) -> Body:
        assert self.process.stdout is not None
        length = int(self.process.stdout.readline().partition(b":")[2])
        assert not self.process.stdout.readline().strip()
        message: Body = json.loads(self.process.stdout.read(length))
        if message["type"] == "event":
            self.events.append(message)
        return message

    def ask(self, command: str, **arguments: Any) -> Body:
        """The response to a request."""
        self.sequence += 1
        request = {"seq": self.sequence, "type": "request", "command": command, "arguments": arguments}
        self.send(json.dumps(request).encode())
        while (message := self.read()).get("request_seq") != self.sequence:
            pass
        return message

    def wait(self, event: str) -> Body:
        """The body of the next event of that name that has not been waited for."""
        while not (found := [message for message in self.events if message["event"] == event]):
            self.read()
        self.events.remove(found[0])
        body: Body = found[0]["body"]
        return body

    def launch(self, **arguments: Any) -> None:
        assert self.ask("initialize")["body"]["supportsConditionalBreakpoints"]
        assert self.ask("launch", device="local-sync", **arguments)["success"]


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.process.kill()
    made.process.wait()
    for stream in (made.process.stdin, made.process.stdout):
        assert stream is not None
        stream.close()


def test_an_editor_debugs_by_lines(client: Client) -> None:
    client.launch(
        module=str(RELEASES / "scalars_math-20240129.785.vmfb"),
        function="unary",
        input=["3"],
        stopOnEntry=False,
    )
    client.wait("initialized")
    source = {"path": "/elsewhere/programs/scalars_math.mlir"}
    rows = [{"line": 5, "condition": "%i0 == 3"}, {"line": 500}, {"line": 6, "condition": "("}]
    found = client.ask("setBreakpoints", source=source, breakpoints=rows)["body"]["breakpoints"]
    assert [row["verified"] for row in found] == [True, False, False]
    assert "no instruction is from it" in found[1]["message"]
    assert not client.ask("stackTrace")["success"]
    client.ask("configurationDone")
    assert client.wait("stopped")["reason"] == "breakpoint"
    assert client.ask("threads")["body"]["threads"] == [{"id": 1, "name": "program"}]
    (frame,) = client.ask("stackTrace", threadId=1)["body"]["stackFrames"]
    assert frame["line"] == 5
    assert frame["source"]["path"] == str(RELEASES / "scalars_math.mlir")
    (scope,) = client.ask("scopes", frameId=frame["id"])["body"]["scopes"]
    reference = scope["variablesReference"]
    variables = client.ask("variables", variablesReference=reference)["body"]["variables"]
    assert variables[0] == {"name": "%i0", "value": "3.0 : f32", "variablesReference": 0}
    changed = client.ask("setVariable", variablesReference=reference, name="%i0", value="%i0 + 1")
    assert changed["body"]["value"] == "4.0 : f32"
    assert client.ask("evaluate", expression="%i0 * 2", frameId=frame["id"])["body"]["result"] == "8.0"
    refused = client.ask("evaluate", expression="nothing", frameId=frame["id"])
    assert "NameError" in refused["message"] and refused["body"]["error"]["format"] == refused["message"]
    pages = [client.ask("stackTrace", threadId=1, startFrame=n, levels=1)["body"] for n in (0, 1)]
    assert [len(page["stackFrames"]) for page in pages] == [1, 0] and pages[1]["totalFrames"] == 1
    for command, arguments in (
        ("nonsense", {}), ("scopes", {"frameId": 77}), ("scopes", {"frameId": -1}), ("scopes", {}),
    ):  # fmt: skip
        assert not client.ask(command, **arguments)["success"]
    client.ask("next", threadId=1)
    assert client.wait("stopped")["reason"] == "step"
    client.ask("continue", threadId=1)
    client.wait("terminated")
    assert client.wait("exited") == {"exitCode": 0}
    client.ask("disconnect")
    assert client.process.wait(20) == 0


def test_an_editor_stops_a_program_and_goes(client: Client) -> None:
    """It asks to disconnect when it has heard of the end, and gets an answer."""
    client.launch(module=str(RELEASES / "scalars_math-20240129.785.vmfb"), function="unary", input=["3"])
    client.wait("initialized")
    client.ask("configurationDone")
    assert client.wait("stopped")["reason"] == "entry"
    assert client.ask("terminate")["success"]
    client.wait("terminated")
    assert client.ask("disconnect")["success"]
    assert client.process.wait(20) == 0


def test_an_editor_debugs_listings(client: Client) -> None:
    """A module without lines shows its instructions; breakpoints are of these, of imports and dispatches."""
    client.launch(
        module=str(ROOT / "tests/data/programs/calls.vmfb"), function="both", input=["4xf32=1,2,3,4"]
    )
    client.wait("initialized")
    names = [{"name": "import hal.fence.create"}, {"name": "dispatch *"}, {"name": "nowhere"}]
    found = client.ask("setFunctionBreakpoints", breakpoints=names)["body"]["breakpoints"]
    assert [row["verified"] for row in found] == [True, True, False]
    client.ask("configurationDone")
    assert client.wait("stopped")["reason"] == "entry"
    (frame,) = client.ask("stackTrace")["body"]["stackFrames"]
    reference = frame["source"]["sourceReference"]
    listing = client.ask("source", sourceReference=reference)["body"]["content"].splitlines()
    assert "vm.const.i32 16" in listing[frame["line"] - 1]
    client.ask("setBreakpoints", source={"sourceReference": reference}, breakpoints=[{"line": 4}])
    client.ask("continue")
    assert client.wait("stopped")["reason"] == "breakpoint"
    assert client.ask("stackTrace")["body"]["stackFrames"][0]["line"] == 4
    client.ask("continue")
    assert "hal.fence.create" in client.wait("stopped")["text"]
    assert client.ask("setFunctionBreakpoints", breakpoints=names[1:2])["success"]
    client.ask("continue")
    assert "dispatch" in client.wait("stopped")["text"]
    assert client.ask("evaluate", expression="outputs[0].sum()")["body"]["result"] == "np.float32(20.0)"
    client.ask("continue")
    client.wait("terminated")
    printed = "".join(event["body"]["output"] for event in client.events if event["event"] == "output")
    assert "4xf32=2 4 6 8" in printed
    client.ask("disconnect")
    assert client.process.wait(20) == 0


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b"[" * 100_000])
def test_what_is_no_message_ends_it(client: Client, data: bytes) -> None:
    client.send(data)
    assert "the debugger ends" in client.wait("output")["output"]
    assert client.process.wait(20) == 0


@pytest.mark.parametrize(
    ("configuration", "says"),
    [({"module": "nowhere.vmfb", "function": "f"}, "NOT_FOUND"), ({"input": 5}, "'input' of the launch")],
)
def test_an_editor_that_goes_ends_it(client: Client, configuration: Body, says: str) -> None:
    client.launch(**configuration)
    assert says in client.wait("output")["output"]
    assert client.wait("exited") == {"exitCode": 1}
    assert client.process.stdin is not None
    client.process.stdin.close()
    assert client.process.wait(20) == 0
