"""What contrib/kubernetes has: against the published API, against what is promised of it, and, as far as an
engine without a cluster goes, run."""

import contextlib
import copy
import json
import re
import shutil

import pytest
import yaml

from lib import engines, kubernetes_objects
from lib.harness import REPOSITORY, wait_until

pytestmark = pytest.mark.release

MANIFESTS = REPOSITORY / "contrib/kubernetes"


def documents(path):
    with open(MANIFESTS / path, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def base():
    kustomization, = documents("base/kustomization.yaml")
    return [document for name in kustomization["resources"] for document in documents(f"base/{name}")]


def of_kind(kind, found=None):
    return [document for document in found or base() if document["kind"] == kind]


def profile_pod():
    """The pod of the provider profile, with its defaults."""
    profile = json.loads((REPOSITORY / "contrib/providers/kubernetes.json").read_text())
    values = {name: parameter["default"] for name, parameter in profile["parameters"].items()}
    word, = (word for word in profile["create"][0]["run"]
             if isinstance(word, str) and word.startswith("--overrides="))
    text = re.sub(r"\{([a-z_]+)\}", lambda found: values[found.group(1)], word.partition("=")[2])
    return {"kind": "Pod", **json.loads(text)}


def everything():
    return [*base(), *documents("sandbox.yaml"), *documents("https/ingress.yaml"), profile_pod()]


@pytest.mark.parametrize("document", everything(), ids=lambda d: f"{d['kind']}-{d['metadata'].get('name', 'profile')}")
def test_every_object_is_as_the_published_api_has_it(document):
    kubernetes_objects.check(document)
    spec = kubernetes_objects.pod_spec(document)
    if spec:
        kubernetes_objects.check_restricted(spec)
        assert spec["automountServiceAccountToken"] is False
        assert all("memory" in container["resources"]["limits"] for container in spec["containers"])
        assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in spec["containers"])


@pytest.mark.parametrize("wrong", [
    lambda pod: pod["spec"].update(restartPolice="Always"),
    lambda pod: pod["spec"]["containers"][0].pop("name"),
    lambda pod: pod["spec"]["containers"][0].update(args="--root"),
    lambda pod: pod["spec"].pop("containers"),
])
def test_what_the_published_api_does_not_have_is_found(wrong):
    pod, = documents("sandbox.yaml")
    kubernetes_objects.check(pod)
    wrong(pod)
    with pytest.raises((AssertionError, ValueError)):
        kubernetes_objects.check(pod)


def test_patches_are_of_fields_that_there_are():
    kustomization, = documents("https/kustomization.yaml")
    for patch in kustomization["patches"]:
        document, = documents(f"https/{patch['path']}")
        target, = (found for found in of_kind(document["kind"])
                   if found["metadata"]["name"] == document["metadata"]["name"])
        if document["kind"] == "StatefulSet":
            container, = document["spec"]["template"]["spec"]["containers"]
            assert container["name"] == target["spec"]["template"]["spec"]["containers"][0]["name"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert container[probe].pop("$patch") == "replace"
            assert container["args"][0] == target["spec"]["template"]["spec"]["containers"][0]["args"][0]
        else:
            model = kubernetes_objects.KINDS[document["apiVersion"], document["kind"]]
            kubernetes_objects.check_model(document, model, patch["path"], partial=True)


def test_labels_names_and_accounts_lead_to_each_other():
    service, = of_kind("StatefulSet")
    template = service["spec"]["template"]
    assert service["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    names = {document["metadata"]["name"] for document in of_kind("Service")}
    assert service["spec"]["serviceName"] in names
    for document in [*of_kind("Service"), *of_kind("PodDisruptionBudget")]:
        selector = document["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= template["metadata"]["labels"].items()
    accounts = {document["metadata"]["name"] for document in of_kind("ServiceAccount")}
    assert template["spec"]["serviceAccountName"] in accounts
    mounted = {mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
    declared = {volume["name"] for volume in template["spec"]["volumes"]}
    declared |= {claim["metadata"]["name"] for claim in service["spec"]["volumeClaimTemplates"]}
    assert mounted == declared
    sandbox, = documents("sandbox.yaml")
    of_profile = profile_pod()["spec"]
    assert of_profile["securityContext"] == sandbox["spec"]["securityContext"]
    assert of_profile["containers"][0]["securityContext"] == sandbox["spec"]["containers"][0]["securityContext"]


def test_roles_give_no_more_than_a_client_needs():
    roles = {role["metadata"]["name"]: role for role in of_kind("Role")}
    rights = {name: {(resource, verb) for rule in role["rules"] for resource in rule["resources"]
                     for verb in rule["verbs"] if rule["apiGroups"] == [""]}
              for name, role in roles.items()}
    use = {("pods", "get"), ("pods", "list"), ("pods/exec", "create"), ("pods/exec", "get")}
    assert rights == {"berth-user": use,
                      "berth-provider": use | {("pods", verb) for verb in ("create", "delete", "watch")}}
    assert all(rule["apiGroups"] == [""] for role in roles.values() for rule in role["rules"])
    for binding in of_kind("RoleBinding"):
        assert binding["roleRef"]["name"] in roles and binding["roleRef"]["kind"] == "Role"
        assert all(subject["kind"] == "ServiceAccount" for subject in binding["subjects"])


def test_nothing_comes_in_or_goes_out_unless_a_label_says_so():
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("NetworkPolicy")}
    deny = policies.pop("default-deny")
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    world = policies.pop("egress-world")
    assert world["podSelector"]["matchLabels"] == {"berth-egress": "world"} and world["policyTypes"] == ["Egress"]
    blocks = [peer["ipBlock"] for rule in world["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert all({"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(block["except"])
               for block in blocks)
    assert not policies


def test_the_kubelet_is_answered_without_a_certificate(harness):
    """Its probes of https/ have none, where all others need one."""
    service = harness.start_service(unix=False, tls=True, client_ca=True)
    command = ["curl", "--silent", "--insecure", "--output", harness.new_path("answer"), "--write-out", "%{http_code}"]
    assert harness.run([*command, f"{service.tls_url}/healthz"]).stdout == "200"
    assert harness.run([*command, f"{service.tls_url}/v1/workspaces"]).stdout == "403"


@pytest.mark.sandbox
@pytest.mark.unsanitised
@pytest.mark.xdist_group("engines")
@pytest.mark.timeout(180)
def test_the_image_the_pod_and_the_probes_run(harness):
    with contextlib.closing(engines.Podman()) as podman:
        podman.make_image()
        context = harness.new_path("context")
        context.mkdir()
        shutil.copy(harness.program("berthd-static"), context)
        podman.run("build", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={podman.image}",
                   "--file", MANIFESTS / "Containerfile", "--tag", "registry.example/berth:0.1.0", context)
        pod, = documents("sandbox.yaml")
        path = harness.new_path("pod.yaml")
        path.write_text(json.dumps(pod))
        podman.run("kube", "play", "--network", "none", path)
        name = f"{pod['metadata']['name']}-{pod['spec']['containers'][0]['name']}"
        service, = of_kind("StatefulSet")
        container, = copy.deepcopy(service["spec"]["template"]["spec"]["containers"])
        probe = container["startupProbe"]["exec"]["command"]
        assert probe == container["readinessProbe"]["exec"]["command"] == container["livenessProbe"]["exec"]["command"]
        assert container["args"] == pod["spec"]["containers"][0]["args"]
        wait_until(lambda: podman.run("exec", name, *probe, check=False).returncode == 0, 30, "the probe")
        status = podman.text("exec", name, "cat", "/proc/1/status")
        assert re.search(r"^Uid:\t65532\t65532", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)

        url = f"exec:{podman.bin}/podman exec -i {name} berthd --stdio --root /var/lib/berth/root"
        harness.run_berth("create", "task", url=url, check=True)
        policy = harness.run_berth("policy", "task", url=url, check=True).stdout
        assert "own, by landlock" in policy and "none, by seccomp" in policy
        assert harness.run_berth("exec", "-w", "task", "--", "sh", "-c", "exit 7", url=url).returncode == 7
        # One that does not answer is found out.
        podman.run("exec", name, "sh", "-c", "kill -STOP $(pidof berthd | tr ' ' '\\n' | grep -vx 1)", check=False)
        stopped = podman.run("exec", name, "timeout", "3", *probe, check=False)
        assert stopped.returncode != 0
        harness.run([harness.program("berth"), "connection", "stop", "--all"])
