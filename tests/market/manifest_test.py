# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the manifest of packaging/kubernetes is one that a cluster reads: the owner and its tenant
have one folder, one user, and variables that the library accepts.
Method: it is parsed and followed; without PyYAML the test is skipped."""

import pathlib
import sys

try:
    import yaml
except ImportError:
    print("skipped: there is no PyYAML")
    sys.exit(0)

MANIFEST = pathlib.Path(__file__).parents[2] / "packaging/kubernetes/vmm-owner.yaml"


def pod_of(part: dict) -> dict:
    """The pod's specification."""
    return part["spec"]["template"]["spec"] if part["kind"] == "DaemonSet" else part["spec"]


def main() -> int:
    """Follows the manifest."""
    parts = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
    assert [each["kind"] for each in parts] == ["DaemonSet", "Pod"]
    selector = parts[0]["spec"]["selector"]["matchLabels"]
    assert selector == parts[0]["spec"]["template"]["metadata"]["labels"]
    folders, users, variables = set(), set(), {}
    for part in parts:
        pod = pod_of(part)
        (volume,) = pod["volumes"]
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert mount["name"] == volume["name"]
        folders.add((volume["hostPath"]["path"], mount["mountPath"]))
        users.add(container["securityContext"]["runAsUser"])
        variables |= {each["name"]: each["value"] for each in container["env"]}
    assert len(folders) == 1, "the owner's folder is not the tenant's"
    assert len(users) == 1, "the owner is another user than the tenant"
    ((_, inside),) = folders
    command = pod_of(parts[0])["containers"][0]["command"]
    assert command[:3] == ["vmm-owner", "serve", inside]
    assert "--stay" in command, "a cluster would restart an owner without tenants for ever"
    assert variables["VMM_OWNER"] == inside
    keys = {word.split("=")[0] for word in variables["VMM_TENANT"].split(",")}
    assert keys <= {"guarantee", "limit", "priority", "elastic", "name", "group", "job"}
    return 0


if __name__ == "__main__":
    sys.exit(main())
