"""Variables that NCCL reads from files."""

from __future__ import annotations

from pathlib import Path

from jobs.fabric.kernel_files import FileTree
from jobs.fabric.software import parse_variables, read_nccl_files
from tests.support.fabric_tree_builder import Tree


def test_lines() -> None:
    text = "# NCCL_DEBUG=INFO\nNCCL_IB_TIMEOUT=22\n\nNCCL_PROTO=^LL128\nnonsense\n=x\nNCCL_IB_TIMEOUT=14\n"
    assert parse_variables(text) == (("NCCL_IB_TIMEOUT", "22"), ("NCCL_PROTO", "^LL128"))


def test_blanks_quotes_and_comments_belong_to_the_name_and_the_value() -> None:
    text = 'NCCL_PROTO = ^LL128\nNCCL_DEBUG="WARN"\nexport NCCL_IB_SL=1\nNCCL_IB_TC=41 # of the site\n'
    assert parse_variables(text) == (
        ("NCCL_PROTO ", " ^LL128"),
        ("NCCL_DEBUG", '"WARN"'),
        ("export NCCL_IB_SL", "1"),
        ("NCCL_IB_TC", "41 # of the site"),
    )


def test_blanks_at_the_ends_of_a_file_belong_to_its_variables(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.write("/etc/nccl.conf", " NCCL_IB_SL=1\nNCCL_DEBUG=WARN ")
    (file,) = read_nccl_files(FileTree(tmp_path), {}, "/home/me")
    assert file.variables == ((" NCCL_IB_SL", "1"), ("NCCL_DEBUG", "WARN "))


def test_files_in_the_order_of_nccl(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.write("/etc/nccl.conf", "NCCL_DEBUG=WARN")
    t.write("/home/me/.nccl.conf", "NCCL_DEBUG=INFO")
    t.write("/scratch/job.conf", "NCCL_DEBUG=TRACE")

    def paths(**environ: str) -> list[str]:
        return [each.path for each in read_nccl_files(FileTree(tmp_path), environ, "/home/me")]

    assert paths() == ["/home/me/.nccl.conf", "/etc/nccl.conf"]
    assert paths(NCCL_CONF_FILE="/scratch/job.conf") == ["/scratch/job.conf", "/etc/nccl.conf"]
    assert paths(NCCL_CONF_FILE="/missing") == ["/etc/nccl.conf"]
