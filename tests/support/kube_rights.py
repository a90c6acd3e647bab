"""The rights that deployments/kubernetes has, given in a namespace of the tests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from kube import Target

ACCOUNT = "prefect-ft"
RIGHTS, CORDON = "rights.yaml", "cordon.yaml"
_DIRECTORY = Path(__file__).parents[2] / "deployments" / "kubernetes"


def documents(namespace: str, *files: str) -> list[dict[str, Any]]:
    """The files' objects, as somebody writes them who uses another namespace."""
    texts = [
        (_DIRECTORY / file).read_text().replace("namespace: training", f"namespace: {namespace}")
        for file in files
    ]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def rules(namespace: str, *files: str) -> set[tuple[str, str]]:
    """All that they allow: verb and resource."""
    return {
        (verb, resource)
        for document in documents(namespace, *files)
        for rule in document.get("rules", ())
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


@contextmanager
def allowed(target: Target, *files: str) -> Iterator[None]:
    """While entered, the account `prefect-ft` of the namespace has these files' rights and no others."""
    from kubernetes import client

    rights = client.RbacAuthorizationV1Api(target.core.api_client)
    namespaced = {"ServiceAccount": target.core, "Role": rights, "RoleBinding": rights}
    names = {"ServiceAccount": "service_account", "Role": "role", "RoleBinding": "role_binding"}
    names |= {"ClusterRole": "cluster_role", "ClusterRoleBinding": "cluster_role_binding"}
    with ExitStack() as stack:
        for document in documents(target.namespace, *files):
            kind, name = document["kind"], names[document["kind"]]
            if kind in namespaced:
                where = (target.namespace,)
                create = getattr(namespaced[kind], f"create_namespaced_{name}")
                delete = getattr(namespaced[kind], f"delete_namespaced_{name}")
            else:
                where = ()
                create, delete = getattr(rights, f"create_{name}"), getattr(rights, f"delete_{name}")
            create(*where, document)
            stack.callback(delete, document["metadata"]["name"], *where)
        accounts = target.core.read_namespaced_service_account
        target.until(lambda: bool(accounts(ACCOUNT, target.namespace).secrets))
        yield


def kubeconfig_of_the_account(target: Target, directory: Path) -> Path:
    """Write how somebody reaches the cluster who has the account's token."""
    account = target.core.read_namespaced_service_account(ACCOUNT, target.namespace)
    secret = target.core.read_namespaced_secret(account.secrets[0].name, target.namespace)
    whole = yaml.safe_load(Path(target.kubeconfig).read_text())
    for user in whole["users"]:
        user["user"] = {"token": base64.b64decode(secret.data["token"]).decode()}
    path = directory / "account.kubeconfig"
    path.write_text(yaml.safe_dump(whole))
    return path
