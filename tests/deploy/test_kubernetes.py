"""The StatefulSet is valid, runs commands that exist, and needs few rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.commands import unknown_words

FILE = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"
OBJECTS: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(FILE.read_text())}
SET = OBJECTS["StatefulSet"]["spec"]
POD = SET["template"]["spec"]
(NODE,) = POD["containers"]


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_has_the_form_that_kubernetes_wants(kind: str) -> None:
    kubernetes_validate.validate(OBJECTS[kind], kubernetes_validate.latest_version(), strict=True)


def test_an_object_with_a_wrong_field_is_refused() -> None:
    wrong = {**OBJECTS["StatefulSet"], "spec": {**SET, "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_arguments_and_the_probe_are_those_of_commands_that_exist() -> None:
    assert unknown_words(["serve", *NODE["args"]]) == []
    program, *status = NODE["readinessProbe"]["exec"]["command"]
    assert (program, status) == ("postroom", ["status", "--check"])
    assert unknown_words(status) == []


def test_the_nodes_know_each_other_before_they_are_ready() -> None:
    (joined,) = re.findall(r"--join=(\S+)", " ".join(NODE["args"]))
    service = OBJECTS["Service"]
    name = OBJECTS["StatefulSet"]["metadata"]["name"]
    wanted = [f"{name}-{n}.{SET['serviceName']}:7400" for n in range(SET["replicas"])]
    assert joined.split(",") == wanted
    assert SET["serviceName"] == service["metadata"]["name"]
    assert SET["podManagementPolicy"] == "Parallel"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["clusterIP"] == "None"


def test_each_mounted_volume_exists_and_all_objects_select_the_pods() -> None:
    there = {each["name"] for each in POD["volumes"]}
    there |= {each["metadata"]["name"] for each in SET["volumeClaimTemplates"]}
    assert {each["name"] for each in NODE["volumeMounts"]} == there
    labels = SET["template"]["metadata"]["labels"]
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert SET["selector"]["matchLabels"] == labels


def test_a_pod_has_no_rights_that_a_node_does_not_need() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert not POD["automountServiceAccountToken"]
    assert NODE["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
