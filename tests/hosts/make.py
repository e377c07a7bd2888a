"""Regenerates the synthetic machines of this folder: ``python tests/hosts/make.py [FOLDER]``.

Nobody has recorded these; each is put together from words that kernels, WSL and NVML are known to use, in a state that
users have reported. ``origin`` in host.json says where state and words come from. Machines that were recorded (``kind``
is ``recorded``) are left alone. ``ticks`` says how many samples it takes until the machine does what it is there for.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

from texts import (
    FOLKLORE,
    GIB,
    KERNEL_5_15,
    KERNEL_6_6,
    KERNEL_6_18,
    KERNEL_UBUNTU,
    MIB,
    TORCH,
    Files,
    cgroup,
    disks_and_network,
    gpu,
    gpu_under_wsl,
    kernel,
    kernel_log,
    memory,
    nvml,
    pressure,
    process,
    processor,
    reclaim,
    settings,
    wsl,
    wsl_commands,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WALL = 1_790_000_000.0
#: what Windows tells beside it: of a PC with 64 GB and that card
WINDOWS = tomllib.loads((Path(__file__).parent.parent / "probes/windows/11-english.toml").read_text("utf-8"))
CARD = 16303 * MIB
ISSUE = "https://github.com/microsoft/WSL/issues/"


class Machine(NamedTuple):
    """All of one synthetic machine."""

    origin: list[str]
    files: Files
    nvml: dict[str, Any] | None = None
    links: dict[str, str] = {}
    commands: dict[str, str] = {}
    disks: dict[str, list[int]] = {}
    ticks: int = 1
    windows: dict[str, Any] | None = None


#: ext4.vhdx shows 1 TB whatever Windows has left: MicrosoftDocs/WSL, disk-space.md
WSL_DISKS = {
    "/": [1081101176832, 970000000000, 915000000000, 67108864, 66000000],
    "/mnt/c": [999000000000, 41000000000, 41000000000, 0, 0],
}


def wsl_machine(release: str = KERNEL_6_6, *, with_gpu: bool = True) -> Files:
    """Return a WSL2 machine with memory=50GB, swap=20GB and processors=24 that does nothing."""
    return {
        **kernel(release, boot=1),
        **memory(49 * GIB, 44 * GIB, 46 * GIB, 2 * GIB, 2 * GIB, 20 * GIB, 20 * GIB, 126 * MIB),
        **reclaim(pgfault=7044074, pgmajfault=1494),
        **pressure(),
        **processor(24, 0.4),
        **disks_and_network("sdc", "eth0"),
        **wsl(gpu=with_gpu),
        **settings(),
        **process(1, "systemd", 14 * MIB, "/sbin/init"),
        **process(420, "node", 350 * MIB, "/home/user/.vscode-server/bin/node out/server-main.js --token x"),
    }


def training(pid: int, rss: int, swap: int = 0) -> tuple[Files, dict[str, str]]:
    """Return a PyTorch training and its links, under WSL2."""
    files = process(pid, "pt_main_thread", rss, "/opt/venv/bin/python3.12 -u train.py --lr 1", swap, TORCH)
    return files, {f"/proc/{pid}/exe": "/usr/bin/python3.12", f"/proc/{pid}/fd/9": "/dev/dxg"}


def wsl_card(used: int, busy: int, pid: int | None = None) -> dict[str, Any]:
    """Return an RTX 5070 Ti under WSL2."""
    card = gpu(0, "NVIDIA GeForce RTX 5070 Ti", CARD, used, busy, 30 + 2 * busy, {pid: 0} if pid else {})
    names = {32: "/Xwayland", **({pid: "/python3.12"} if pid else {})}
    return nvml(gpu_under_wsl(card), driver="591.44", cuda=13010, names=names)


def wsl2_idle() -> Machine:
    """The desktop holds 1.5 GiB of the card, nothing runs."""
    return Machine(
        [ISSUE + "10011", ISSUE + "11293", "https://github.com/Syllo/nvtop/issues/432"],
        {**wsl_machine(), **settings("[wsl2]\nmemory=50GB\n[general]\ninstanceIdleTimeout=-1\n")},
        wsl_card(1536 * MIB, 3),
        commands=wsl_commands("2.6.3"),
        disks=WSL_DISKS,
    )


def wsl2_vram_full() -> Machine:
    """A training fills the card; the Windows driver refuses to make more resident."""
    files, links = training(9309, 6 * GIB)
    links["/proc/9309/fd/12"] = "/mnt/c/data/train-00017.tar"
    log = kernel_log(
        "hv_vmbus: registering driver dxgkrnl",
        "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",
        *["misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12"] * 3,
    )
    return Machine(
        [ISSUE + "41176", ISSUE + "40732", "https://github.com/Syllo/nvtop/issues/432"],
        {**wsl_machine(), **files, **log},
        wsl_card(15800 * MIB, 100, 9309),
        links,
        wsl_commands("2.7.10", "mirrored"),
        WSL_DISKS,
        windows=WINDOWS["probe"]["answer"],
    )


def two_programs(answer: dict[str, Any], release: str) -> Machine:
    """Two programs hold a card, and much of RAM is pinned; ``answer`` is what /dev/dxg says of them."""
    trained, links = training(9309, 6 * GIB)
    served = process(9400, "python3", 2 * GIB, "/usr/bin/python3 serve.py")
    before = "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\n"
    tgid = {f"/proc/{at}/status": f"{before}Tgid:\t{of}\n" for at, of in {9309: 9309, 9321: 9309, 9400: 9400}.items()}
    # what of the others is kept: no process has a number twice
    status = {path: text + trained.get(path, "") + served.get(path, "") for path, text in tgid.items()}
    card = wsl_card(15200 * MIB, 97, 9309)
    return Machine(
        [
            "https://github.com/ROCm/librocdxg/issues/36",
            "https://github.com/Comfy-Org/ComfyUI/issues/15679",
            "https://lore.kernel.org/linux-hyperv/20260319202509.63802-43-eric.curtin@docker.com/",
        ],
        {**wsl_machine(release), **trained, **served, **status},
        {**card, "dxg": answer},
        {**links, "/proc/9400/exe": "/usr/bin/python3.12", "/proc/9400/fd/7": "/dev/dxg"},
        wsl_commands("2.7.10", "mirrored"),
        WSL_DISKS,
        windows=WINDOWS["probe"]["answer"],
    )


def wsl2_vram_measured() -> Machine:
    """The kernel answers: one program by the number of a thread, one that has ended, and ourselves with nothing."""
    budget = 15 * GIB
    processes = [
        [9321, budget, 11 * GIB, 10 * GIB, GIB],
        [9400, budget, 3 * GIB, 3 * GIB, 0],
        [9555, budget, 5 * GIB, 5 * GIB, 0],
        [9600, 0, 0, 0, 0],
    ]
    own = [budget, 0, 0, 0]
    adapters = [
        {"luid": "0x0_0xd120", "vram_bytes": 128 * MIB, "pci": "", "own": own, "processes": []},
        {"luid": "0x0_0xc8a5", "vram_bytes": 16112 * MIB, "pci": "", "own": own, "processes": processes},
    ]
    return two_programs({"adapters": adapters}, KERNEL_6_6)


def wsl2_vram_suspected() -> Machine:
    """The same machine with a kernel that has no list of processes."""
    return two_programs({"failed": ["LX_DXENUMPROCESSES", "ENOTTY"]}, KERNEL_5_15)


def wsl2_swap_thrash() -> Machine:
    """A build of a CUDA extension has filled RAM; swap-in and refaults say that nothing moves any more."""
    files: Files = {}
    for i in range(8):
        files |= process(7000 + i, "cicc", 5600 * MIB, f"cicc --arch x /tmp/flash_{i}.cu", 1800 * MIB)
    files |= process(6990, "ninja", 9 * MIB, "ninja -j 24")
    log = kernel_log(
        "cicc invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        "task_memcg=/user.slice,task=cicc,pid=7008,uid=1000",
        "Out of memory: Killed process 7008 (cicc) total-vm:5242880kB, anon-rss:3145728kB, file-rss:512kB, "
        "shmem-rss:0kB, UID:1000 pgtables:6400kB oom_score_adj:0",
        seconds=4990.0,
    )
    full = {
        **memory(49 * GIB, 400 * MIB, 300 * MIB, 200 * MIB, 47 * GIB, 20 * GIB, 5 * GIB),
        **reclaim(
            pgfault=90044074,
            pgmajfault=2801494,
            pswpin=6000000,
            pswpout=9000000,
            allocstall_normal=41000,
            allocstall_movable=90000,
            pgsteal_kswapd=30000000,
            pgsteal_direct=5000000,
            pgscan_kswapd=90000000,
            pgscan_direct=22000000,
            workingset_refault_anon=5500000,
            workingset_refault_file=4200000,
            oom_kill=1,
        ),
        **pressure(memory_some=88.5, memory_full=61.2, io_some=92.0),
        **processor(24, 61.0, running=9, blocked=17),
    }
    return Machine(
        [ISSUE + "10199", ISSUE + "40458", "https://github.com/Dao-AILab/flash-attention/pull/832"],
        {**wsl_machine(), **settings(FOLKLORE, swappiness=10, overcommit_memory=1), **full, **files, **log},
        wsl_card(1536 * MIB, 0),
        commands=wsl_commands("2.6.3"),
        disks=WSL_DISKS,
    )


def wsl2_no_psi() -> Machine:
    """WSL's 5.15 kernel: no pressure stall information; a WSL too old for wslinfo."""
    files = {k: v for k, v in wsl_machine(KERNEL_5_15).items() if not k.startswith("/proc/pressure")}
    return Machine([ISSUE + "11147"], files, wsl_card(1536 * MIB, 3), disks=WSL_DISKS)


def no_gpu() -> Machine:
    """WSL2 with gpuSupport=false: no /dev/dxg, no NVML."""
    return Machine(
        ["src/windows/common/WslCoreConfig.cpp of https://github.com/microsoft/WSL (gpuSupport)"],
        {**wsl_machine(with_gpu=False), **settings("[wsl2]\ngpuSupport=false\n", max_map_count=65530)},
        commands=wsl_commands("2.6.3"),
        disks=WSL_DISKS,
    )


def gpu_lost() -> Machine:
    """A card falls off the bus of a Linux machine during a training."""
    recording = linux_cards(1)
    recording["steps"] = [{}, {"gpus": {"0": {"*": {"error": "GPU_IS_LOST"}}}}]
    log = kernel_log(
        "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", seconds=4999.0
    )
    files, links = linux_machine()
    return Machine(
        ["https://docs.nvidia.com/deploy/xid-errors/ (79)"],
        {**files, **log},
        recording,
        links,
        disks=LINUX_DISKS,
        ticks=2,
    )


def nvml_hang() -> Machine:
    """NVML stops answering under WSL2 when the card is full."""
    recording = wsl_card(15900 * MIB, 100)
    recording["steps"] = [{}, {"do": "hang"}]
    return Machine(
        [ISSUE + "40732"], wsl_machine(), recording, commands=wsl_commands("2.7.10"), disks=WSL_DISKS, ticks=2
    )


def nvml_crash() -> Machine:
    """Drivers 552 and 555 crashed whoever asked them under WSL2."""
    recording = wsl_card(1536 * MIB, 3)
    recording["steps"] = [{}, {"do": "crash"}]
    return Machine(
        [ISSUE + "11277", ISSUE + "11870"],
        wsl_machine(),
        recording,
        commands=wsl_commands("2.2.4"),
        disks=WSL_DISKS,
        ticks=2,
    )


def unknown_v2() -> Machine:
    """Driver 516.59 answers UNKNOWN to the second version of the memory call."""
    recording = wsl_card(1536 * MIB, 3)
    recording["gpus"][0]["nvmlDeviceGetMemoryInfo(33554472)"] = {"error": "UNKNOWN"}
    recording["system"]["nvmlSystemGetDriverVersion"] = "516.59"
    return Machine(
        ["https://github.com/XuehaiPan/nvitop/issues/30"],
        wsl_machine(),
        recording,
        commands=wsl_commands("2.6.3"),
        disks=WSL_DISKS,
    )


def driver_mismatch() -> Machine:
    """Windows has updated the driver while WSL was running."""
    return Machine(
        [ISSUE + "9035", ISSUE + "11589"],
        wsl_machine(),
        {"init": {"error": "LIB_RM_VERSION_MISMATCH"}, "gpus": []},
        commands=wsl_commands("2.6.3"),
        disks=WSL_DISKS,
    )


LINUX_DISKS = {"/": [1900000000000, 900000000000, 800000000000, 122000000, 110000000]}


def linux_machine() -> tuple[Files, dict[str, str]]:
    """Return a Linux workstation with a training, and its links."""
    files = {
        **kernel(KERNEL_UBUNTU, boot=2),
        **memory(126 * GIB, 60 * GIB, 95 * GIB, 36 * GIB, 24 * GIB, 8 * GIB, 8 * GIB, GIB),
        **reclaim(pgfault=99044074, pgmajfault=31494),
        **pressure(io_some=2.5),
        **processor(32, 9.5, running=8),
        **disks_and_network("nvme0n1", "enp5s0"),
        "/proc/self/mounts": "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
        "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0\n",
        **cgroup("/user.slice", None, 24 * GIB),
        **process(1, "systemd", 14 * MIB, "/sbin/init"),
        **process(5151, "pt_main_thread", 21 * GIB, "python3 train.py", framework=TORCH),
        "/dev/nvidiactl": "",
    }
    links = {
        "/proc/5151/exe": "/usr/bin/python3.12",
        "/proc/5151/fd/7": "/dev/nvidiactl",
        "/proc/5151/fd/8": "/dev/nvidia0",
    }
    return files, links


def linux_cards(number: int) -> dict[str, Any]:
    """Return RTX 4090 cards of which the first trains."""
    cards = [
        gpu(
            i,
            "NVIDIA GeForce RTX 4090",
            24564 * MIB,
            0 if i else 18 * GIB,
            0 if i else 97,
            22 if i else 380,
            {} if i else {5151: 18 * GIB},
        )
        for i in range(number)
    ]
    return nvml(*cards, driver="580.95.05", cuda=13000, names={5151: "/usr/bin/python3.12"})


def two_gpus() -> Machine:
    """A Linux workstation with two cards, one busy."""
    files, links = linux_machine()
    return Machine(["https://docs.nvidia.com/deploy/nvml-api/"], files, linux_cards(2), links, disks=LINUX_DISKS)


def gpu_unreachable() -> Machine:
    """One of two cards has not let anybody reach it since the start: its handle is refused, the other trains on."""
    recording = linux_cards(2)
    recording["gpus"][1] = {"*": {"error": "UNKNOWN"}}
    files, links = linux_machine()
    reports = [
        "https://github.com/NVIDIA/dcgm-exporter/issues/604",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/387",
        "https://github.com/meta-llama/llama-models/issues/200",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/69",
        "https://github.com/jamesstringer90/Easy-GPU-PV/issues/276",
    ]
    return Machine(reports, files, recording, links, disks=LINUX_DISKS)


def mig_container() -> Machine:
    """In a container, the driver refuses the memory and processes of a card that is divided into instances."""
    recording = linux_cards(1)
    card = recording["gpus"][0]
    card["nvmlDeviceGetName"] = "NVIDIA H100 80GB HBM3"
    for call in ("MemoryInfo(33554472)", "MemoryInfo", "ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3"):
        card[f"nvmlDeviceGet{call}"] = {"error": "NO_PERMISSION"}
    card["nvmlDeviceGetUtilizationRates"] = {"error": "NOT_SUPPORTED"}
    files, links = linux_machine()
    reports = [
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/842",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1363",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/399",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/1683",
        "https://github.com/ollama/ollama/issues/932",
    ]
    return Machine(reports, files, recording, links, disks=LINUX_DISKS)


def no_card() -> Machine:
    """The driver works under WSL2 and counts no card: it is disabled in Windows, unplugged, or in TCC mode."""
    reports = [ISSUE + "8134", ISSUE + "9099", ISSUE + "9952", ISSUE + "12835"]
    recording = nvml(driver="591.44", cuda=13010, names={32: "/Xwayland"})
    return Machine(reports, wsl_machine(), recording, commands=wsl_commands("2.6.3"), disks=WSL_DISKS)


def vram_above_ram() -> Machine:
    """A card with more memory than the PC has RAM, and a page file that is too small: every CUDA program fails."""
    card = gpu(0, "NVIDIA RTX PRO 6000 Blackwell", 97887 * MIB, 1536 * MIB, 3, 36)
    card["nvmlDeviceGetCudaComputeCapability"] = [12, 0]
    recording = nvml(gpu_under_wsl(card), driver="596.36", cuda=13020, names={32: "/Xwayland"})
    return Machine(
        [ISSUE + "40678", ISSUE + "14452", "https://github.com/victorchall/EveryDream2trainer/issues/163"],
        {**wsl_machine(), "/usr/lib/systemd/system/nvidia-cdi-refresh.service": "[Service]\nType=oneshot\n"},
        recording,
        commands=wsl_commands("2.7.3"),
        disks=WSL_DISKS,
        windows=WINDOWS["probe"]["answer"],
    )


def wsl3_containers() -> Machine:
    """A build in WSL's containers has taken what Windows had left; beside it, hardly anything runs in WSL."""
    user = "/mnt/c/Users/user/AppData/Local/wslc"
    card = {"Name": "pid_8112_luid_0x00000000_0x0000C8A5_phys_0", "LocalUsage": 3 * GIB}
    told = WINDOWS["probe"]["answer"]
    windows = {
        **told,
        "memory": [{**told["memory"][0], "AvailableBytes": 1200 * MIB, "CommittedBytes": 70 * GIB}],
        "programs": [*told["programs"][1:], {**card, "Program": "vmmemwslc-cli-user"}],
        "vm": [
            {"Name": "vmmemWSL", "WorkingSet": 4 * GIB, "Private": 4 * GIB},
            {"Name": "vmmemwslc-cli-user", "WorkingSet": 31 * GIB, "Private": 30 * GIB},
        ],
    }
    return Machine(
        ["https://github.com/microsoft/WSL/discussions/40942", ISSUE + "41438", "https://aka.ms/wslc-settings"],
        {**wsl_machine(KERNEL_6_18), f"{user}/settings.yaml": "session:\n  # memorySize: default\n"},
        wsl_card(7 * GIB, 3),
        commands=wsl_commands("3.0.1"),
        disks=WSL_DISKS,
        windows=windows,
    )


def cgroup_limit() -> Machine:
    """WSL's coming limit on everything of the user is nearly reached, and a container's inside it."""
    box = f"/wsl-user/docker/{7:064}"
    files = {
        **wsl_machine(KERNEL_6_18),
        **cgroup("/wsl-user", 49 * GIB - 32 * MIB, 48 * GIB, GIB, hits=120, hits_below=5000),
        **cgroup("/wsl-user/docker", None, 3 * GIB),
        **cgroup(box, 4 * GIB, 4 * GIB - 10 * MIB, 300 * MIB, hits=5000, kills=2),
        **memory(49 * GIB, 500 * MIB, 1200 * MIB, 800 * MIB, 46 * GIB, 20 * GIB, 19 * GIB),
        **reclaim(pgfault=99044074, pgmajfault=91494, pswpout=300000, oom_kill=2),
        **kernel_log(
            "hv_vmbus: registering driver dxgkrnl",
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
            f"oom_memcg={box},task_memcg={box},task=python3,pid=812,uid=0",
            "Memory cgroup out of memory: Killed process 812 (python3) total-vm:9000000kB, anon-rss:4100000kB, "
            "file-rss:9000kB, shmem-rss:0kB, UID:0 pgtables:9000kB oom_score_adj:0",
            seconds=4000.0,
        ),
    }
    # The 6.18 kernel has PSI built in but off.
    files = {k: v for k, v in files.items() if not k.startswith("/proc/pressure")}
    return Machine(
        [
            "https://github.com/microsoft/WSL/pull/40519",
            ISSUE + "9669",
            "arch/x86/configs/config-wsl of https://github.com/microsoft/WSL2-Linux-Kernel 6.18.20.1",
        ],
        files,
        wsl_card(1536 * MIB, 3),
        commands=wsl_commands("2.9.9"),
        disks=WSL_DISKS,
    )


MACHINES = (
    wsl2_idle,
    wsl2_vram_full,
    wsl2_vram_measured,
    wsl2_vram_suspected,
    wsl2_swap_thrash,
    wsl2_no_psi,
    no_gpu,
    gpu_lost,
    nvml_hang,
    nvml_crash,
    unknown_v2,
    two_gpus,
    driver_mismatch,
    cgroup_limit,
    gpu_unreachable,
    mig_container,
    no_card,
    vram_above_ram,
    wsl3_containers,
)


def write(machine: Machine, folder: Path) -> None:
    """Write one machine, replacing the previous one."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in machine.files.items():
        file = folder / "root" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    facts = {
        "kind": "synthetic",
        "origin": machine.origin,
        "ticks": machine.ticks,
        "wall": WALL,
        "mono": 5000.0,
        "links": machine.links,
        "disks": machine.disks,
        "commands": machine.commands,
    }
    (folder / "host.json").write_text(json.dumps(facts, indent=1) + "\n")
    if machine.nvml is not None:
        (folder / "nvml.json").write_text(json.dumps(machine.nvml, indent=1) + "\n")
    if machine.windows is not None:
        (folder / "windows.json").write_text(json.dumps(machine.windows, indent=1) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for make in MACHINES:
        write(make(), target / make.__name__.replace("_", "-"))
