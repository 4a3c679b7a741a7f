"""`VAR=VALUE` arguments of an A/B comparison."""

from __future__ import annotations

import pytest

from disttrain.errors import ConfigError
from jobs.arms.plan import baseline_changes, changed, doubtful_settings, parse_settings


def test_values_may_hold_any_text():
    words = ["NCCL_IB_HCA==mlx5_0,mlx5_1", "NCCL_NET=", "A=b c", "NCCL_MY_PLUGINS_OWN=1", "OMP_NUM_THREAD=4"]
    assert parse_settings(words) == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "NCCL_MY_PLUGINS_OWN": "1",
        "OMP_NUM_THREAD": "4",
        "NCCL_NET": "",
        "A": "b c",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["NCCL_ALGO"], "VAR=VALUE"),
        (["2X=1"], "VAR=VALUE"),
        (["A=1", "A=2"], "twice"),
        (["MASTER_ADDR=x"], "launcher"),
        (["WANDB_API_KEY=x"], "secret"),
        (["NCCL_ALOG=Ring"], "fabric ab: no known library reads 'NCCL_ALOG'; did you mean 'NCCL_ALGO'?"),
        (["GLOO_SOCKET_IFNMAE=eth0"], "did you mean 'GLOO_SOCKET_IFNAME'"),
        (["TORCH_NCCL_NAN_CHEK=1"], "did you mean 'TORCH_NCCL_NAN_CHECK'"),
        (["NCLL_SOCKET_IFNAME=eth0"], "did you mean 'NCCL_SOCKET_IFNAME'"),
        (["NCCL_PROTO=LL129"], "NCCL_PROTO=LL129 is not allowed; it takes LL, LL128, Simple."),
        (["NCCL_IB_TIMEOUT=120"], "NCCL_IB_TIMEOUT=120 is not allowed; it takes an integer from 1 to 31."),
    ],
)
def test_other_words_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_settings(words)


def test_a_name_close_to_a_known_one_is_compared_on_request():
    words = ["NCCL_IB_QPS_PER_CONNECTIONS=2", "NCCL_ALGO=Ring"]
    with pytest.raises(ConfigError, match="With --allow-unknown it is compared all the same"):
        parse_settings(words)
    settings = parse_settings(words, allow_unknown=True)
    assert settings == {"NCCL_IB_QPS_PER_CONNECTIONS": "2", "NCCL_ALGO": "Ring"}
    (sentence,) = doubtful_settings(settings)
    assert sentence.endswith("did you mean 'NCCL_IB_QPS_PER_CONNECTION'?")
    with pytest.raises(ConfigError, match="secret"):
        parse_settings(["WANDB_API_KEY=x"], allow_unknown=True)


def test_the_baseline_lacks_a_setting_that_holds_already():
    environment = {"A": "1", "B": "2", "C": "3"}
    removed = baseline_changes({"A": "1", "B": "9", "D": "4"}, environment)
    assert removed == {"A": None}
    assert changed(environment, removed) == {"B": "2", "C": "3"}
    assert changed(environment, {**removed, "A": "1"}) == environment
