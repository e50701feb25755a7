"""YAML in, YAML out: what the operator makes of a job and a runtime template.

After a wanted change: `python -m tests.operator_plan.golden_objects`, and read the difference.
"""

import json

import pytest
import yaml

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec
from longboat_crds.runtime import RLRuntimeSpec
from longboat_graders.environment import CONFIG_MAPS as ENVIRONMENT_FILES
from longboat_operator.pods.merge import TemplateInvalid
from longboat_operator.pods.names import Place
from longboat_operator.pods.pod import build_pod
from longboat_operator.pods.roles import ROLES
from longboat_runtime.data.references import CONFIG_MAPS
from tests.operator_plan.golden_objects import GOLDEN, JOB, objects
from tests.operator_plan.simulated_cluster import spec_of, with_environments

CASES = sorted(path.name for path in GOLDEN.iterdir())


def built(role: Role, runtime: dict | None = None, **spec: object) -> dict:
    template = RLRuntimeSpec.model_validate({"image": "longboat-runtime:1"} | (runtime or {}))
    job = RLJobSpec.model_validate((with_environments if role is Role.ENVIRONMENT else spec_of)(**spec))
    place = ROLES[role].places(job)[0]
    return dict(build_pod(JOB, job, template, "sums-runtime-1", role, place, 0, token="token", one_node=False))


def containers(pod: dict) -> dict[str, dict]:
    return {c["name"]: c for c in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]}


@pytest.mark.parametrize("case", CASES)
def test_objects_are_as_kept(case: str) -> None:
    for name, bodies in objects(case).items():
        kept = list(yaml.safe_load_all((GOLDEN / case / f"{name}.yaml").read_text()))
        assert bodies == kept, f"{case}/{name}.yaml"


@pytest.mark.parametrize("role", list(Role))
def test_agents_are_told_how_long_their_pod_may_take_to_end(role: Role) -> None:
    """Of the template that has the last word. Only agents: what the template adds may have a command called agent, too."""
    more = {"containers": [{"name": "monitoring", "image": "monitoring:1", "args": ["agent"]}]}
    runtime = {
        "common": {"template": {"spec": {"terminationGracePeriodSeconds": 60}}},
        "roles": {role: {"template": {"spec": {"terminationGracePeriodSeconds": 600} | more}}},
    }
    told = {name: c["args"][-2:] for name, c in containers(built(role, runtime)).items()}
    agents = {name: args for name, args in told.items() if name not in {"graders", "environment", "monitoring"}}
    assert agents
    assert all(args == ["--grace-seconds", "600"] for args in agents.values())
    assert told["monitoring"] == ["agent"]
    assert "--grace-seconds" not in [*told.get("graders", ()), *told.get("environment", ())]


@pytest.mark.parametrize("role", list(Role))
def test_autoscalers_leave_the_nodes_of_driver_and_trainer_alone(role: Role) -> None:
    """Unless the template says otherwise."""
    marks = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
    annotations = built(role)["metadata"]["annotations"]
    if role in {Role.DRIVER, Role.TRAINER}:
        assert marks.items() <= annotations.items()
    else:
        assert not marks.keys() & annotations.keys()
    allowed = {"karpenter.sh/do-not-disrupt": "false"}
    runtime = {"common": {"template": {"metadata": {"annotations": allowed}}}}
    assert allowed.items() <= built(role, runtime)["metadata"]["annotations"].items()


@pytest.mark.parametrize("role", list(Role))
def test_credentials_of_trackers_are_files_for_the_driver_alone_and_keep_no_pod_from_starting(role: Role) -> None:
    wandb = {"project": "sums", "secret": {"name": "wandb"}}
    mlflow = {"trackingUri": "https://mlflow.example.com", "experiment": "sums", "secret": {"name": "mlflow"}}
    pod = built(role, tracking={"weightsAndBiases": wandb, "mlflow": mlflow})
    volumes = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "tracking"]
    mounting = [name for name, c in containers(pod).items() if "tracking" in {m["name"] for m in c["volumeMounts"]}]
    assert mounting == (["driver"] if role is Role.DRIVER else [])
    assert "WANDB" not in json.dumps([c.get("env") for c in containers(pod).values()])
    for volume in volumes:
        sources = [source["secret"] for source in volume["projected"]["sources"]]
        assert [source["name"] for source in sources] == ["wandb", "mlflow"]
        assert all(source["optional"] for source in sources)
        keys = {item["key"] for source in sources for item in source["items"]}
        assert all(key.startswith(("WANDB_", "MLFLOW_TRACKING_")) for key in keys), "no key that other Secrets have"
    offline = built(role, tracking={"weightsAndBiases": {"project": "sums", "mode": "Offline"}})
    assert "tracking" not in {volume["name"] for volume in offline["spec"]["volumes"]}


@pytest.mark.parametrize("role", list(Role))
def test_a_chat_template_in_a_config_map_is_a_file_for_the_driver_alone(role: Role) -> None:
    template = {"configMap": {"name": "mine", "key": "chat.jinja"}}
    pod = built(role, dataset={"chatTemplate": template})
    volumes = [volume["configMap"] for volume in pod["spec"]["volumes"] if volume["name"] == "dataset-files"]
    mounts = {
        name: mount["mountPath"]
        for name, container in containers(pod).items()
        for mount in container["volumeMounts"]
        if mount["name"] == "dataset-files"
    }
    drives = role is Role.DRIVER
    assert volumes == ([{"name": "mine"}] if drives else [])
    assert mounts == ({"driver": str(CONFIG_MAPS / "mine")} if drives else {})


@pytest.mark.parametrize(("name", "volumes"), [("mine", ["mine"]), ("other", ["mine", "other"])])
def test_the_evaluation_may_have_its_chat_template_in_the_same_config_map_or_another(
    name: str, volumes: list[str]
) -> None:
    rows, held_out = ({"chatTemplate": {"configMap": {"name": each, "key": "chat.jinja"}}} for each in ("mine", name))
    pod = built(Role.DRIVER, dataset={**rows, "evaluation": {"reasoningGym": {"task": "chain_sum"}, **held_out}})
    named = {v["name"]: v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v}
    mounts = {m["name"]: m["mountPath"] for m in containers(pod)["driver"]["volumeMounts"] if m["name"] in named}
    assert list(named.values()) == volumes
    assert mounts == {volume: str(CONFIG_MAPS / each) for volume, each in named.items()}


@pytest.mark.parametrize("role", list(Role))
def test_every_container_is_restricted(role: Role) -> None:
    pod = built(role)
    security = pod["spec"]["securityContext"]
    assert security["runAsNonRoot"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod).values():
        own = container["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("role", [Role.REWARD, Role.ENVIRONMENT])
def test_user_code_has_no_token_and_shares_only_the_socket_with_ray(role: Role) -> None:
    pod = built(role)
    with_ray, with_code = (containers(pod)[name] for name in ROLES[role].containers)
    assert with_code["securityContext"]["runAsUser"] != pod["spec"]["securityContext"]["runAsUser"]
    assert not [e for e in with_code["env"] if e["name"].startswith("RAY")]
    shared = {m["name"] for m in with_code["volumeMounts"]} & {m["name"] for m in with_ray["volumeMounts"]}
    assert shared == {"run"}
    assert not pod["spec"]["automountServiceAccountToken"]
    sockets = [each["args"][each["args"].index("--socket") + 1] for each in (with_ray, with_code)]
    assert sockets[0] == sockets[1]
    assert sockets[0].startswith(next(m["mountPath"] for m in with_code["volumeMounts"] if m["name"] == "run"))


@pytest.mark.parametrize("role", [Role.REWARD, Role.ENVIRONMENT])
def test_user_code_has_the_runtimes_image_and_command_unless_the_template_names_an_image_for_it(role: Role) -> None:
    runtime = {"image": "runtime:1", "command": ["/bin/longboat"]}
    expected = dict.fromkeys(ROLES[role].containers, ("runtime:1", "/bin/longboat"))
    for named, code in (
        ({}, ("runtime:1", "/bin/longboat")),
        ({"gradersImage": "graders:1"}, ("graders:1", "longboat")),
    ):
        pod = built(role, runtime=runtime | named)
        starts = {name: (each["image"], *each["command"]) for name, each in containers(pod).items()}
        assert starts == expected | {ROLES[role].containers[1]: code}


def test_an_environment_pod_sees_the_config_maps_of_its_own_pools_environments() -> None:
    function = {"function": None, "configMap": {"name": "tools", "key": "tools.py", "function": "play"}}
    spec = with_environments()
    changed = [spec["environments"][0], spec["environments"][1] | function]
    job = RLJobSpec.model_validate(spec | {"environments": changed})
    runtime = RLRuntimeSpec(image="runtime:1")
    for pool, files in (("games", []), ("tools", ["tools"])):
        body = ROLES[Role.ENVIRONMENT].pod_spec(JOB, job, runtime, pool)
        assert [volume["configMap"]["name"] for volume in body["volumes"] if "configMap" in volume] == files
        code = body["containers"][1]
        mounted = {mount["mountPath"] for mount in code["volumeMounts"]}
        assert {f"{ENVIRONMENT_FILES}/{name}" for name in files} <= mounted


def test_an_environment_pod_offers_as_many_episodes_as_its_pool_says() -> None:
    pod = built(Role.ENVIRONMENT, environmentPools=[{"name": "games", "episodesPerPod": 5}, {"name": "tools"}])
    episodes = containers(pod)["episodes"]["args"]
    assert episodes[episodes.index("--slots") + 1] == "5"
    assert episodes[episodes.index("--pool") + 1] == "games"


def test_only_the_driver_container_has_an_api_token() -> None:
    for role in Role:
        pod = built(role)
        assert not pod["spec"]["automountServiceAccountToken"]
        holders = [
            name for name, c in containers(pod).items() if any(m["name"] == "api-access" for m in c["volumeMounts"])
        ]
        assert holders == (["driver"] if role is Role.DRIVER else [])


def test_the_ray_head_is_another_user_of_the_driver_s_group_and_shares_only_what_ray_needs() -> None:
    pod = built(Role.DRIVER)
    head, driver = containers(pod)["ray-head"], containers(pod)["driver"]
    assert head["securityContext"]["runAsUser"] not in {pod["spec"]["securityContext"]["runAsUser"], 10002}
    assert "runAsGroup" not in head["securityContext"]
    shared = {m["name"] for m in head["volumeMounts"]} & {m["name"] for m in driver["volumeMounts"]}
    assert shared == {"ray", "shm", "ray-token"}


def test_the_ray_token_is_never_in_the_environment() -> None:
    for role in Role:
        for container in containers(built(role)).values():
            assert "RAY_AUTH_TOKEN" not in {e["name"] for e in container["env"]}


def test_a_common_template_reaches_the_role_that_has_the_container_and_no_other() -> None:
    common = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]}}
    runtime = {"common": {"template": common}}
    assert {"name": "A", "value": "1"} in containers(built(Role.TRAINER, runtime))["trainer"]["env"]
    assert set(containers(built(Role.ROLLOUT, runtime))) == {"rollout"}


def test_a_template_can_not_change_who_the_pod_is() -> None:
    template = {
        "metadata": {"name": "mine", "labels": {"longboat.dev/job": "mine"}, "ownerReferences": []},
        "spec": {"restartPolicy": "Never"},
    }
    pod = built(Role.ROLLOUT, {"roles": {"rollout": {"template": template}}})
    assert pod["metadata"]["name"] == "sums-rollout-0-a0"
    assert pod["metadata"]["labels"]["longboat.dev/job"] == "sums"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == JOB.uid
    assert pod["spec"]["restartPolicy"] == "Always"


def test_a_template_of_another_form_names_its_place() -> None:
    runtime = {"roles": {"rollout": {"template": {"spec": {"containers": [{"image": "x"}]}}}}}
    with pytest.raises(TemplateInvalid, match=r"roles\.rollout\.template\.spec\.containers\[0\]"):
        built(Role.ROLLOUT, runtime)


def test_an_existing_claim_is_mounted_by_its_name() -> None:
    pod = built(Role.TRAINER, checkpoint={"claimName": "theirs"})
    assert {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "theirs"}} in pod["spec"]["volumes"]


def neighbours(role: Role, devices: tuple[Role, ...]) -> list[str]:
    """Roles whose node a pod of a ReadWriteOnce job takes, where the pods of some roles ask for a device."""
    resources = {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}
    roles = {r: {"template": {"spec": {"containers": [{"name": r, "resources": resources}]}}} for r in devices}
    template = RLRuntimeSpec.model_validate({"image": "longboat-runtime:1", "roles": roles})
    job = RLJobSpec.model_validate(spec_of(checkpoint={"volume": {"accessMode": "ReadWriteOnce"}}))
    pod = build_pod(JOB, job, template, "sums-runtime-1", role, Place("", 0), 0, token="token", one_node=True)
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    (roles_of,) = term["labelSelector"]["matchExpressions"]
    return list(roles_of["values"])


@pytest.mark.parametrize("devices", [(Role.TRAINER,), (Role.DRIVER, Role.TRAINER), ()])
def test_the_trainer_that_needs_a_gpu_decides_the_node_and_the_driver_waits_for_it(devices: tuple[Role, ...]) -> None:
    assert neighbours(Role.DRIVER, devices) == ["trainer"]
    assert neighbours(Role.TRAINER, devices) == ["driver", "trainer"], (
        "trainers made anew join a driver that has stayed"
    )


def test_a_driver_that_alone_needs_a_gpu_decides_the_node() -> None:
    assert neighbours(Role.TRAINER, (Role.DRIVER,)) == ["driver"]
    assert neighbours(Role.DRIVER, (Role.DRIVER,)) == ["driver", "trainer"]


def test_a_lost_node_is_given_up_soon_unless_the_template_says_when() -> None:
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    template = {"roles": {"rollout": {"template": {"spec": {"tolerations": [own]}}}}}
    assert {t["key"]: t["tolerationSeconds"] for t in built(Role.ROLLOUT, template)["spec"]["tolerations"]} == {
        "node.kubernetes.io/unreachable": 5, "node.kubernetes.io/not-ready": 60,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("toleration", "lasting"),
    [
        ({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, False),
        ({"key": "node.kubernetes.io/not-ready"}, True),
        ({"key": "node.kubernetes.io/not-ready", "effect": ""}, True),
        ({}, True),
        ({"key": ""}, True),
    ],
)
def test_only_a_toleration_that_keeps_a_pod_on_a_lost_node_replaces_ours(
    toleration: dict[str, str], lasting: bool
) -> None:
    own = {"operator": "Exists", **toleration}
    template = {"roles": {"rollout": {"template": {"spec": {"tolerations": [own]}}}}}
    limits = {
        t["key"]: t["tolerationSeconds"]
        for t in built(Role.ROLLOUT, template)["spec"]["tolerations"]
        if "tolerationSeconds" in t
    }
    assert limits.get("node.kubernetes.io/not-ready") == (None if lasting else 60)


@pytest.mark.parametrize("runtime", [
    {"common": {"template": {"spec": {"containers": None}}}},
    {"roles": {"trainer": {"template": {"spec": {"containers": None}}}}},
])  # fmt: skip
def test_a_template_that_removes_all_containers_is_named(runtime: dict) -> None:
    with pytest.raises(TemplateInvalid, match=r"spec\.containers.*role trainer.*roles\.trainer\.template"):
        built(Role.TRAINER, runtime)
