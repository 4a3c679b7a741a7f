"""Values that HPE prescribes for NCCL on Slingshot."""

from __future__ import annotations

from typing import NamedTuple

SLINGSHOT_GUIDE = "https://github.com/HewlettPackard/shs-ccl-docs"
SLINGSHOT_EAGER = "https://github.com/HewlettPackard/shs-ccl-docs/pull/21"
_COPIED = "shorter messages are copied through the host, and may arrive corrupt"


class Prescribed(NamedTuple):
    """One variable."""

    name: str
    value: str
    reason: str
    source: str = SLINGSHOT_GUIDE
    for_correctness: bool = True


SLINGSHOT_VARIABLES = (
    Prescribed("FI_MR_CACHE_MONITOR", "userfaultfd", "other monitors of freed memory may deadlock with NCCL"),
    Prescribed("FI_CXI_DISABLE_HOST_REGISTER", "1", "registering host memory with CUDA may deadlock"),
    Prescribed("FI_CXI_DEFAULT_CQ_SIZE", "131072", "the default completion queue overflows with NCCL"),
    Prescribed("FI_CXI_RX_MATCH_MODE", "hybrid", "software matches messages once the adapter's list is full"),
    Prescribed("FI_CXI_RDZV_EAGER_SIZE", "0", "no part of a message is sent ahead of its rendezvous"),
    Prescribed("FI_CXI_RDZV_THRESHOLD", "0", _COPIED, SLINGSHOT_EAGER),
    Prescribed("FI_CXI_RDZV_GET_MIN", "0", _COPIED, SLINGSHOT_EAGER),
    Prescribed(
        "FI_CXI_DEFAULT_TX_SIZE", "2048", "NCCL has more operations in flight than the default queue holds",
        for_correctness=False,
    ),
    Prescribed(
        "NCCL_CROSS_NIC", "1", "every adapter reaches those of all nodes, so a ring may change adapters",
        for_correctness=False,
    ),
    Prescribed(
        "NCCL_NET_GDR_LEVEL", "PHB", "adapters write to GPUs of the same NUMA node without a copy",
        for_correctness=False,
    ),
)  # fmt: skip
