"""Site profiles: what is read, what wins, and what is refused, in one line that says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from disttrain.errors import ConfigError
from docs.generate.files import DOCS
from jobs.schedulers import SHIPPED
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.select import scheduler_named
from jobs.schedulers.site_profiles import VARIABLE, resolve
from jobs.schedulers.slurm.profile import GENERIC, Profile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".config" / "disttrain" / "profiles"
    folder.mkdir(parents=True)
    return folder


def test_generic_asks_for_nothing() -> None:
    assert resolve(ProfileSelection()).model_dump(exclude={"description"}) == GENERIC.model_dump(
        exclude={"description"}
    )


def test_flag_then_record_then_variable_then_generic(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mine.yaml").write_text("partition: mine")
    (home / "infiniband.yaml").write_text("partition: of-the-user")
    recorded = GENERIC.model_copy(update={"name": "old", "qos": "low"}).model_dump(mode="json")
    assert resolve(ProfileSelection(), recorded).qos == "low"
    monkeypatch.setenv(VARIABLE, "mine")
    assert (resolve(ProfileSelection()).name, resolve(ProfileSelection()).partition) == ("mine", "mine")
    assert resolve(ProfileSelection(), recorded).name == "old"
    assert resolve(ProfileSelection("mine"), recorded).name == "mine"
    assert resolve(ProfileSelection("infiniband")).partition == "of-the-user", "goes before the shipped one"
    over = resolve(ProfileSelection(overrides=("qos=high", "partition=urgent")), recorded)
    assert (over.name, over.qos, over.partition) == ("old", "high", "urgent")
    Path("here.yaml").write_text("account: physics")
    assert resolve(ProfileSelection("here.yaml")).account == "physics"


def test_values_of_the_command_line_mean_what_they_say() -> None:
    words = (
        "exclude=n[1-3]", "constraint=[a|b]", "memory=0", "mail_type=END,FAIL", "modules=[gcc, cuda/12]",
        "setup=export A='b c'", "cpus_per_task=8", "exclusive=true", "sbatch.switches=1",
        "sbatch.contiguous=true", "srun.cpu-bind=none", "environment.NCCL_DEBUG=WARN",
        "container.kind=pyxis", "container.image=docker://a#b:c", "container.mounts=[/a:/b]",
    )  # fmt: skip
    made = resolve(ProfileSelection(overrides=words))
    assert (made.exclude, made.constraint, made.memory, made.cpus_per_task) == ("n[1-3]", "[a|b]", "0", 8)
    assert (made.mail_type, made.modules, made.setup) == (
        ("END", "FAIL"),
        ("gcc", "cuda/12"),
        ("export A='b c'",),
    )
    assert (made.exclusive, made.srun, made.sbatch) == (
        True, {"cpu-bind": "none"}, {"switches": "1", "contiguous": True},
    )  # fmt: skip
    assert made.environment["NCCL_DEBUG"].reason == "--slurm"
    assert made.container is not None
    assert (made.container.image, made.container.mounts) == ("docker://a#b:c", ("/a:/b",))
    recorded = made.model_dump(mode="json")
    assert resolve(
        ProfileSelection(overrides=("exclude=", "environment.NCCL_DEBUG=", "sbatch.switches=")), recorded
    ) == (made.model_copy(update={"exclude": None, "environment": {}, "sbatch": {"contiguous": True}}))
    assert Profile.model_validate(recorded) == made, "what run.json keeps is the whole of it"


@pytest.mark.parametrize(
    "nodes",
    ["n1", "gpu[01-04,7],login1", "rack[1-2]n[3,5]", "node-3.site", "a_b,c", "n[1-3]x", "n[001-128]"],
)
def test_node_lists_of_slurm_are_taken(nodes: str) -> None:
    assert resolve(ProfileSelection(overrides=(f"exclude={nodes}",))).exclude == nodes


@pytest.mark.parametrize("features", ["a100&nvme", "[rack1|rack2]", "[(a&b)|c*2]", "!a", "(a|b)&c", "a=1"])
def test_constraints_of_slurm_are_taken(features: str) -> None:
    assert resolve(ProfileSelection(overrides=(f"constraint={features}",))).constraint == features


REFUSED = {
    "partition=a\nb": "holds a control character",
    "partition=a\x85b": "holds a control character",
    "partition=a b": "is not a name, or several with commas",
    "partition=-x": "is not a name",
    "partition=$(id)": "is not a name",
    "partiton=a": "unknown key 'partiton'; did you mean 'partition'?",
    "account=a;b": "is not a name",
    "memory=64 G": "is not a size such as 64G",
    "exclude=/etc/passwd": "is not a node list",
    "exclude=node[1-2": "is not a node list",
    "exclude=node1]": "is not a node list",
    "exclude=node[]": "is not a node list",
    "exclude=node[1-]": "is not a node list",
    "exclude=node[1,]": "is not a node list",
    "exclude=node[1[2]]": "is not a node list",
    "exclude=a,,b": "is not a node list",
    "exclude=a,": "is not a node list",
    "exclude=[1-2]": "is not a node list",
    "constraint=[a|b": "constraint='[a|b': lacks a ']'",
    "constraint=a|b)": "has an unmatched ')'",
    "constraint=[(a|b])": "has an unmatched ']'",
    "gpus=gres:2": "allowed: 'gpus-per-node', 'gres', 'gpus' or 'none'; did you mean 'gres'",
    "gpu_type=a:b": "is not a type such as h100",
    "cpus_per_task=0": "greater than 0",
    "mail_type=BEGIN": "'FAIL'",
    "mail_user=a b@c": "is not a mail address",
    "modules=-x": "is not the name of a module",
    "sbatch=x": "give sbatch.KEY=VALUE",
    "sbatch.nodes=3": "nodes is reserved: the shape of the job",
    "sbatch.nod=3": "it abbreviates nodes",
    "sbatch.requ=true": "it abbreviates requeue",
    "sbatch.partition=x": "set the profile's partition",
    "sbatch.x y=1": "a long option without dashes",
    "sbatch.gres=gpu:3": "the profile's gpus and gpu_type",
    "sbatch.gres=nvme:1,gpu:h100:3": "the profile's gpus and gpu_type",
    "sbatch.gres=gres/gpu=3": "the profile's gpus and gpu_type",
    "sbatch.tres-per-task=gres/gpu:1": "the profile's cpus_per_task, gpus and gpu_type",
    "sbatch.tasks-per-node=4": "tasks-per-node is reserved: the shape of the job",
    "sbatch.requeue=true": "only `expedite` may be given",
    "srun.gres=gpu:h100:4": "all GPUs of a node belong to its one task",
    "srun.gpus=4": "all GPUs of a node belong to its one task",
    "sbatch.hint=a\nb": "holds a control character",
    "srun.wait=3": "wait is reserved",
    "srun.preserve-env=true": "the environment would override",
    "srun.mpi=a\x1bb": "holds a control character",
    "environment.RANK=1": "set by the launcher",
    "environment.SLURM_CONF=1": "set by the launcher",
    "environment.PYTHONPATH=/x": "set by the launcher",
    "environment.HF_TOKEN=x": "looks like a secret",
    "environment.A-B=x": "is not the name of a variable",
    "environment.A=x\ny": "holds a control character",
    "python=-c": "begins with a dash",
    "container.kind=docker": "allowed: 'pyxis' or 'apptainer'",
    "container.image=x": "container.kind",
    "name=x": "unknown key 'name'",
    "setup=echo 'a": "is not a complete line of shell",
    "setup=cat <<X": "here-document",
    "setup=true \\": "is not a complete line of shell",
    "setup=if true; then": "is not a complete line of shell",
    "setup=true\nfalse": "holds a control character",
    "foo": "is not KEY=VALUE",
    "exclusive=top": "exclusive='top': allowed: true or false or 'user', 'mcs' or 'topo'",
    "sbatch.account=x": "sbatch: account is reserved",
}


@pytest.mark.parametrize(("word", "why"), REFUSED.items(), ids=map(ascii, REFUSED))
def test_what_cannot_stand_in_a_script_is_refused(word: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(ProfileSelection(overrides=(word,)))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_is_found_by_its_line() -> None:
    Path("site.yaml").write_text("qos: high\nenvironment:\n  NCCL_DEBUG: {valeu: WARN, reason: x}\n")
    with pytest.raises(ConfigError, match=r"site.yaml:3: unknown key '.*\.valeu'; did you mean 'value'"):
        resolve(ProfileSelection("site.yaml"))
    Path("site.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match=r"site.yaml:1: a profile is named by its file"):
        resolve(ProfileSelection("site.yaml"))
    with pytest.raises(ConfigError, match=r"--profile='infinibnd': .*did you mean 'infiniband'"):
        resolve(ProfileSelection("infinibnd"))


def test_a_profile_is_for_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--profile is for Slurm"):
        scheduler_named("local", ProfileSelection("infiniband"))
    with pytest.raises(ConfigError, match="--slurm is for Slurm"):
        scheduler_named("local", ProfileSelection(overrides=("qos=x",)))
    monkeypatch.setenv(VARIABLE, "nowhere")
    assert scheduler_named("local", ProfileSelection()).profile(None) is None, (
        "the variable is for whenever there is Slurm"
    )
    with pytest.raises(ConfigError, match="DISTTRAIN_PROFILE='nowhere'"):
        scheduler_named("slurm", ProfileSelection())


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_profiles_say_why_and_fit_the_schema(path: Path) -> None:
    made = resolve(ProfileSelection(path.stem))
    assert made.description
    assert made.name == path.stem
    schema = Draft202012Validator(json.loads((DOCS / "schemas" / "site-profile.json").read_text()))
    schema.validate(made.model_dump(mode="json"))
    given = yaml.safe_load(path.read_text())
    schema.validate(given | {"name": path.stem})
    assert not schema.is_valid(given | {"name": path.stem, "surprise": 1})
    assert f"`{path.stem}`" in (DOCS / "profiles.md").read_text()
