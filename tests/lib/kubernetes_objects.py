"""Kubernetes objects against the published API: by the models of its Python client, which are generated from
it. What no model knows, and what one requires and is not there, is an error."""

import re

from kubernetes import client

# Of a later release than the models.
LATER = {"V1StatefulSetSpec": {"persistentVolumeClaimRetentionPolicy"}}

KINDS = {
    ("v1", "Namespace"): client.V1Namespace,
    ("v1", "ResourceQuota"): client.V1ResourceQuota,
    ("v1", "LimitRange"): client.V1LimitRange,
    ("v1", "ServiceAccount"): client.V1ServiceAccount,
    ("v1", "Service"): client.V1Service,
    ("v1", "Pod"): client.V1Pod,
    ("apps/v1", "StatefulSet"): client.V1StatefulSet,
    ("policy/v1", "PodDisruptionBudget"): client.V1PodDisruptionBudget,
    ("rbac.authorization.k8s.io/v1", "Role"): client.V1Role,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): client.V1RoleBinding,
    ("networking.k8s.io/v1", "NetworkPolicy"): client.V1NetworkPolicy,
}
SCALARS = {"str": str, "int": int, "bool": bool, "datetime": str}


def _check_type(value, name, where):
    listed = re.fullmatch(r"list\[(.*)\]", name)
    mapped = re.fullmatch(r"dict\(str, (.*)\)", name)
    if listed:
        assert isinstance(value, list), where
        for index, item in enumerate(value):
            _check_type(item, listed.group(1), f"{where}[{index}]")
    elif mapped:
        assert isinstance(value, dict), where
        for key, item in value.items():
            assert isinstance(key, str), f"{where}: {key!r}"
            _check_type(item, mapped.group(1), f"{where}.{key}")
    elif name in SCALARS:
        assert isinstance(value, SCALARS[name]) and (name == "bool") == isinstance(value, bool), f"{where}: {value!r}"
    elif name == "object":  # a quantity's or a port's: a number or a text
        assert isinstance(value, (int, str)) and not isinstance(value, bool), f"{where}: {value!r}"
    else:
        check_model(value, getattr(client, name), where)


def check_model(value, model, where, partial=False):
    """partial: a patch, which may leave out what is required."""
    assert isinstance(value, dict), where
    names = {wire: name for name, wire in model.attribute_map.items()}
    given = {}
    for key, item in value.items():
        if key in LATER.get(model.__name__, ()):
            continue
        assert key in names, f"{where}: no field {key}"
        given[names[key]] = item
        _check_type(item, model.openapi_types[names[key]], f"{where}.{key}")
    if not partial:
        model(**given)  # raises for what is missing, and for values out of an enumeration


def check(document):
    """Raises AssertionError or ValueError that names the place."""
    key = document.get("apiVersion"), document.get("kind")
    assert key in KINDS, key
    check_model(document, KINDS[key], f"{key[1]} {document.get('metadata', {}).get('name')}")


def pod_spec(document):
    """Of a Pod, or of what makes pods; None of others."""
    if document["kind"] == "Pod":
        return document["spec"]
    return document["spec"]["template"]["spec"] if document["kind"] == "StatefulSet" else None


def check_restricted(spec):
    """The restricted Pod Security Standard, as far as these manifests touch it."""
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
    for volume in spec.get("volumes", []):
        assert {"configMap", "emptyDir", "projected", "secret", "downwardAPI", "persistentVolumeClaim", "csi",
                "ephemeral"} >= volume.keys() - {"name"}, volume
    for container in spec["containers"] + spec.get("initContainers", []):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context.get("privileged") and context.get("runAsUser") != 0
        assert "hostPort" not in str(container.get("ports", []))
