"""Site profiles: which one is read, and options that are refused, by their form or by the installed Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from tests.support.commands import Commands
from tests.support.golden import golden


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".config" / "disttrain" / "profiles"
    folder.mkdir(parents=True)
    return folder


def with_words(*words: str, recorded: Mapping[str, Any] | None = None) -> Profile:
    return resolve(ProfileSelection(overrides=words), recorded)


def refusal(selection: ProfileSelection, **given: Any) -> str:
    """The one line by which a profile is refused."""
    with pytest.raises(ConfigError) as caught:
        resolve(selection, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flag_then_record_then_variable_then_generic(home, monkeypatch):
    (home / "mine.yaml").write_text("partition: mine")
    (home / "infiniband.yaml").write_text("partition: of-the-user")
    Path("here.yaml").write_text("account: physics")
    recorded = {**GENERIC.as_dict(), "name": "old", "qos": "low"}
    assert with_words().as_dict() | {"description": None} == GENERIC.as_dict()
    monkeypatch.setenv(VARIABLE, "mine")
    assert (with_words().name, with_words().partition) == ("mine", "mine")
    assert with_words(recorded=recorded).name == "old"
    assert resolve(ProfileSelection("mine"), recorded).name == "mine"
    assert resolve(ProfileSelection("infiniband")).partition == "of-the-user", "goes before the shipped one"
    assert resolve(ProfileSelection("here.yaml")).account == "physics"
    over = with_words("qos=high", "partition=urgent", recorded=recorded)
    assert (over.name, over.qos, over.partition) == ("old", "high", "urgent")


def test_values_of_the_command_line(home):
    made = with_words(
        "exclude=n[1-3]", "constraint=[a|b]", "memory=0", "mail_type=END,FAIL", "modules=[gcc, cuda/12]",
        "setup=export A='b c'", "cpus_per_task=8", "exclusive=true", "sbatch.switches=1",
        "sbatch.contiguous=true", "srun.cpu-bind=none", "environment.NCCL_DEBUG=WARN",
        "container.kind=pyxis", "container.image=docker://a#b:c", "container.mounts=[/a:/b]",
    )  # fmt: skip
    (home / "same.yaml").write_text(
        "{exclude: 'n[1-3]', constraint: '[a|b]', memory: 0, mail_type: [END, FAIL], cpus_per_task: 8,"
        " exclusive: true, modules: [gcc, cuda/12], setup: export A='b c', srun: {cpu-bind: none},"
        " sbatch: {switches: 1, contiguous: true},"
        " environment: {NCCL_DEBUG: {value: WARN, reason: --slurm}},"
        " container: {kind: pyxis, image: 'docker://a#b:c', mounts: '/a:/b'}}"
    )
    names = {"name": "generic", "description": made.description}
    assert made == resolve(ProfileSelection("same")).model_copy(update=names)
    recorded = made.as_dict()
    assert with_words(recorded=recorded) == made, "run.json has the whole of it"
    without = with_words("exclude=", "environment.NCCL_DEBUG=", "sbatch.switches=", recorded=recorded)
    assert without == made.model_copy(
        update={"exclude": None, "environment": {}, "sbatch": {"contiguous": True}}
    )
    assert recorded == made.as_dict(), "a record is not changed"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("exclude", "n1 gpu[01-04,7],login1 rack[1-2]n[3,5] node-3.site a_b,c n[1-3]x n[001-128]"),
        ("constraint", "a100&nvme [rack1|rack2] [(a&b)|c*2] !a (a|b)&c a=1"),
    ],
)
def test_lists_of_slurm_are_taken(key, values):
    for value in values.split():
        assert getattr(with_words(f"{key}={value}"), key) == value


REFUSED = r"""
partition=a\nb
partition=a\x85b
partition=a b
partition=-x
partition=$(id)
partiton=a
account=a;b
memory=64 G
exclude=/etc/passwd
exclude=node[1-2
exclude=node1]
exclude=node[]
exclude=node[1-]
exclude=node[1,]
exclude=node[1[2]]
exclude=a,,b
exclude=a,
exclude=[1-2]
constraint=[a|b
constraint=a|b)
constraint=[(a|b])
gpus=gres:2
gpu_type=a:b
gpus_per_node=0
cpus_per_task=0
mail_type=BEGIN
mail_user=a b@c
modules=-x
sbatch=x
sbatch.nodes=3
sbatch.nod=3
sbatch.requ=true
sbatch.requeue=true
sbatch.partition=x
sbatch.x y=1
sbatch.gres=gpu:3
sbatch.gres=nvme:1,gpu:h100:3
sbatch.gres=gres/gpu=3
sbatch.tres-per-task=gres/gpu:1
sbatch.hint=a\nb
srun.gres=gpu:h100:4
srun.wait=3
srun.preserve-env=true
srun.mpi=a\x1bb
environment.RANK=1
environment.SLURM_CONF=1
environment.PYTHONPATH=/x
environment.HF_TOKEN=x
environment.A-B=x
environment.A=x\ny
python=-c
container.kind=docker
container.image=x
name=x
setup=echo 'a
setup=cat <<X
setup=true \\
setup=if true; then
setup=true\nfalse
foo
exclusive=top
"""
"""Words of `--slurm`, with escapes of Python."""


def test_values_that_cannot_stand_in_a_script_are_refused():
    lines = []
    for escaped in REFUSED.strip().splitlines():
        word = escaped.encode().decode("unicode_escape")
        message = re.sub(r"(?<=line of shell: ).*", "...", refusal(ProfileSelection(overrides=(word,))))
        lines += [escaped, f"  {message}"]
    message = refusal(ProfileSelection(overrides=("gpus=none", "gpu_type=h100")))
    golden("profile-mistakes.txt", "\n".join([*lines, "gpus=none gpu_type=h100", f"  {message}"]) + "\n")


SLURM = """\
case "$1" in
  --help) echo '  -L, --licenses=names'; echo '  --cpu-bind='; echo '  --kill-on-bad-exit' ;;
  --licenses | --mpi) echo 'COMMAND: error: Batch script is empty!' >&2; exit 1 ;;
  --licenses=* | --mpi=* | --nice* | --hold | --exclusive=user) echo slurm 26.05.1 ;;
  --exclusive=*) echo 'COMMAND: error: Invalid --exclusive specification' >&2; exit 255 ;;
  --hold=* | --requeue=*)
    echo "COMMAND: option '${1%%=*}' doesn't allow an argument" >&2
    echo 'Try "COMMAND --help" for more information' >&2; exit 255 ;;
  *) echo "COMMAND: unrecognized option '$1'" >&2
    echo 'Try "COMMAND --help" for more information' >&2; exit 255 ;;
esac"""
"""sbatch and srun, by the output of Slurm 22.05."""


@pytest.fixture
def slurm(commands: Commands) -> Commands:
    for name in ("sbatch", "srun"):
        commands.add(name, SLURM.replace("COMMAND", name))
    return commands


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("sbatch.licences=x", "sbatch.licences: sbatch: .*'--licences=x'; did you mean 'licenses'?$"),
        ("sbatch.zzz=x", "sbatch.zzz: sbatch: unrecognized option '--zzz=x'$"),
        ("sbatch.reservaton=x", "did you mean 'reservation'? .*: set the profile's reservation$"),
        ("sbatch.hold=yes", "sbatch.hold: sbatch: option '--hold' doesn't allow an argument$"),
        ("sbatch.licenses=true", "sbatch.licenses: needs a value$"),
        ("sbatch.requeue=expedite", "sbatch.requeue: sbatch: option '--requeue' doesn't"),
        ("exclusive=topo", "exclusive: sbatch: Invalid --exclusive specification$"),
        ("srun.cpubind=none", "srun.cpubind: srun: .*; did you mean 'cpu-bind'?$"),
        ("srun.mpi=true", "srun.mpi: needs a value$"),
        *(
            (word, None)
            for word in ("sbatch.licenses=x", "sbatch.nice=true", "srun.mpi=pmix", "exclusive=user")
        ),
    ],
)
def test_options_are_tried_on_the_installed_commands(slurm, word, why):
    selection = ProfileSelection("generic", (word,))
    if why is None:
        resolve(selection, try_options=True)
    else:
        assert re.search(why.replace("?", r"\?"), refusal(selection, try_options=True))
        resolve(selection)


def test_without_a_configuration_of_slurm_nothing_is_refused(commands):
    commands.add("sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1")
    resolve(ProfileSelection("generic", ("sbatch.licences=x",)), try_options=True)
    resolve(ProfileSelection("infiniband", ("partition=x",)), try_options=True)
    assert commands.calls().count("sbatch --") == 1, "only for options"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "qos: high\nenvironment:\n  NCCL_DEBUG: {valeu: WARN, reason: x}",
            ":3: .*valeu'; did you mean 'value'",
        ),
        ("name: x", ":1: a profile is named by its file"),
        ("qos: high\nsbatch:\n  licences: matlab", ":3: sbatch.licences: .*did you mean 'licenses'"),
    ],
)
def test_a_mistake_in_a_file_is_found_by_its_line(slurm, text, message):
    Path("site.yaml").write_text(text)
    assert re.search(f"site.yaml{message}", refusal(ProfileSelection("site.yaml"), try_options=True))


def test_an_unknown_profile_has_the_nearest_name():
    assert "did you mean 'infiniband'" in refusal(ProfileSelection("infinibnd"))


def test_a_profile_is_for_slurm(monkeypatch):
    for selection in (ProfileSelection("infiniband"), ProfileSelection(overrides=("qos=x",))):
        with pytest.raises(ConfigError, match=f"{selection.origin} is for Slurm"):
            scheduler_named("local", selection)
    monkeypatch.setenv(VARIABLE, "nowhere")
    assert scheduler_named("local", ProfileSelection()).profile(None) is None
    with pytest.raises(ConfigError, match="DISTTRAIN_PROFILE='nowhere'"):
        scheduler_named("slurm", ProfileSelection())


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_profiles_give_a_reason_and_fit_the_schema(path):
    made = resolve(ProfileSelection(path.stem))
    assert (made.name, bool(made.description)) == (path.stem, True)
    schema = Draft202012Validator(json.loads((DOCS / "schemas" / "site-profile.json").read_text()))
    of_file = {**yaml.safe_load(path.read_text()), "name": path.stem}
    assert [schema.is_valid(each) for each in (made.as_dict(), of_file)] == [True, True]
    assert not schema.is_valid({**of_file, "surprise": 1})
    assert f"`{path.stem}`" in (DOCS / "your-cluster.md").read_text()
