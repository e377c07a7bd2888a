"""The kernel's, WSL's and NVML's words, with figures put in: the stuff that synthetic machines are made of.

Where each form was seen stands next to it. Sizes are in bytes; files come out as the machine writes them.
"""

from __future__ import annotations

from typing import Any

MIB, GIB = 1 << 20, 1 << 30
PAGE = 4096
Files = dict[str, str]

#: From reports: https://github.com/microsoft/WSL/issues/40638 and others; the kernels WSL has shipped.
KERNEL_5_15 = "5.15.167.4-microsoft-standard-WSL2"
KERNEL_6_6 = "6.6.87.2-microsoft-standard-WSL2"
KERNEL_6_18 = "6.18.35.2-microsoft-standard-WSL2"
KERNEL_UBUNTU = "6.8.0-45-generic"


def kernel(release: str, boot: int, uptime: float = 5000.0) -> Files:
    """Return what identifies kernel and boot."""
    return {
        "/proc/sys/kernel/osrelease": f"{release}\n",
        "/proc/sys/kernel/hostname": "host\n",
        "/proc/sys/kernel/random/boot_id": f"00000000-0000-4000-8000-{boot:012}\n",
        "/proc/uptime": f"{uptime:.2f} {uptime * 20:.2f}\n",
    }


def memory(
    total: int, free: int, available: int, cached: int, anon: int, swap_total: int, swap_free: int, shmem: int = 0
) -> Files:
    """Return /proc/meminfo; fields and order of Linux 6.6, fs/proc/meminfo.c."""
    slab = total // 200
    lines = {
        "MemTotal": total,
        "MemFree": free,
        "MemAvailable": available,
        "Buffers": total // 1000,
        "Cached": cached,
        "SwapCached": (swap_total - swap_free) // 50,
        "Active": anon // 2 + cached // 2,
        "Inactive": anon // 2 + cached // 2,
        "Active(anon)": anon // 2,
        "Inactive(anon)": anon // 2,
        "Active(file)": cached // 2,
        "Inactive(file)": cached // 2,
        "Unevictable": 0,
        "Mlocked": 0,
        "SwapTotal": swap_total,
        "SwapFree": swap_free,
        "Dirty": 40 * 1024,
        "Writeback": 0,
        "AnonPages": anon,
        "Mapped": anon // 20,
        "Shmem": shmem,
        "KReclaimable": slab,
        "Slab": 2 * slab,
        "SReclaimable": slab,
        "SUnreclaim": slab,
        "KernelStack": 12 * MIB,
        "PageTables": anon // 500,
        "SecPageTables": 0,
        "NFS_Unstable": 0,
        "Bounce": 0,
        "WritebackTmp": 0,
        "CommitLimit": total // 2 + swap_total,
        "Committed_AS": anon * 3 // 2,
        "VmallocTotal": 34359738367 * 1024,
        "VmallocUsed": 30 * MIB,
        "VmallocChunk": 0,
        "Percpu": 8 * MIB,
        "AnonHugePages": anon // 8,
        "ShmemHugePages": 0,
        "ShmemPmdMapped": 0,
        "FileHugePages": 0,
        "FilePmdMapped": 0,
    }
    text = "".join(f"{name + ':':<16}{value // 1024:>8} kB\n" for name, value in lines.items())
    text += "HugePages_Total:       0\nHugePages_Free:        0\nHugePages_Rsvd:        0\nHugePages_Surp:        0\n"
    return {"/proc/meminfo": text + "Hugepagesize:       2048 kB\nHugetlb:               0 kB\n"}


def reclaim(**counters: int) -> Files:
    """Return /proc/vmstat: names and order of Linux 6.6, mm/vmstat.c, those that matter; the rest are 0."""
    names = (
        "nr_free_pages",
        "workingset_nodes",
        "workingset_refault_anon",
        "workingset_refault_file",
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "allocstall_dma",
        "allocstall_dma32",
        "allocstall_normal",
        "allocstall_movable",
        "allocstall_device",
        "pgfault",
        "pgmajfault",
        "pgsteal_kswapd",
        "pgsteal_direct",
        "pgsteal_khugepaged",
        "pgscan_kswapd",
        "pgscan_direct",
        "pgscan_khugepaged",
        "pgscan_direct_throttle",
        "pgscan_anon",
        "pgscan_file",
        "pgsteal_anon",
        "pgsteal_file",
        "drop_pagecache",
        "drop_slab",
        "oom_kill",
    )
    unknown = set(counters) - set(names)
    if unknown:
        raise ValueError(f"/proc/vmstat has no {unknown}")
    return {"/proc/vmstat": "".join(f"{name} {counters.get(name, 0)}\n" for name in names)}


def pressure(memory_some: float = 0.0, memory_full: float = 0.0, io_some: float = 0.0) -> Files:
    """Return /proc/pressure with these averages in percent; form of Linux 6.6, kernel/sched/psi.c."""

    def text(some: float, full: float) -> str:
        return "".join(
            f"{kind} avg10={value:.2f} avg60={value / 2:.2f} avg300={value / 5:.2f} total={int(value * 3e5) + 1234}\n"
            for kind, value in (("some", some), ("full", full))
        )

    return {
        "/proc/pressure/memory": text(memory_some, memory_full),
        "/proc/pressure/cpu": text(3.0, 0.0),
        "/proc/pressure/io": text(io_some, io_some / 2),
    }


def processor(cpus: int, load: float, running: int = 1, blocked: int = 0) -> Files:
    """Return /proc/stat and /proc/loadavg."""
    one = "120000 300 40000 9000000 1500 0 900 0 0 0"
    all_together = " ".join(str(int(n) * cpus) for n in one.split())
    text = f"cpu  {all_together}\n" + "".join(f"cpu{i} {one}\n" for i in range(cpus))
    text += f"intr 5000000 0 9\nctxt 90000000\nbtime 1789995000\nprocesses 54321\nprocs_running {running}\n"
    text += f"procs_blocked {blocked}\nsoftirq 3000000 0 1\n"
    return {"/proc/stat": text, "/proc/loadavg": f"{load:.2f} {load / 2:.2f} {load / 4:.2f} {running}/900 54321\n"}


def disks_and_network(disk: str, interface: str) -> Files:
    """Return /proc/diskstats and /proc/net/dev of a machine with one of each."""
    return {
        "/proc/diskstats": f"   8       0 {disk} 250000 90000 24000000 80000 400000 300000 52000000 260000 0 150000 "
        "345000 900 0 120000000 4000 30000 1000\n",
        "/proc/net/dev": "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls "
        "carrier compressed\n"
        "    lo:  900000    3000    0    0    0     0          0         0   900000    3000    0    0    0     0"
        "       0          0\n"
        f"  {interface}: 4200000000 3100000    0    2    0     0          0       500 90000000  900000    0    0"
        "    0     0       0          0\n",
    }


def wsl(*, gpu: bool = True) -> Files:
    """Return what makes a machine WSL2.

    Mounts: https://github.com/lamyj/wsl-path-converter/pull/4, https://github.com/microsoft/WSL/issues/7152;
    /run/WSL and binfmt: src/linux/init in microsoft/WSL; kernel lines: microsoft/WSL/issues/11293.
    """
    files = {
        "/run/WSL/1_interop": "",
        "/proc/sys/fs/binfmt_misc/WSLInterop": "enabled\ninterpreter /init\nflags: PF\noffset 0\nmagic 4d5a\n",
        "/proc/self/mounts": "/dev/sdc / ext4 rw,relatime,discard,errors=remount-ro,data=ordered 0 0\n"
        "drivers /usr/lib/wsl/drivers 9p ro,nosuid,nodev,noatime,aname=drivers;fmask=222;dmask=222,trans=fd 0 0\n"
        "C:\\134 /mnt/c 9p rw,noatime,dirsync,aname=drvfs;path=C:\\;uid=1000;gid=1000;symlinkroot=/mnt/,trans=fd "
        "0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0\n",
    }
    boot = ["hv_vmbus: registering driver hv_balloon"]
    if gpu:
        files |= {"/dev/dxg": "", "/usr/lib/wsl/lib/libnvidia-ml.so.1": ""}
        boot = [
            "hv_vmbus: registering driver dxgkrnl",
            "misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -22",
            "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",
        ]
    return {**files, **kernel_log(*boot)}


def settings(wslconfig: str = "", **sysctls: int) -> Files:
    """Return the settings of Windows' user, the distro's and the kernel's (defaults of Linux, and of Ubuntu).

    cmdline: https://github.com/microsoft/WSL/issues/40638.
    """
    kernel_values = {"swappiness": 60, "overcommit_memory": 0, "max_map_count": 262144, **sysctls}
    cmdline = "initrd=\\initrd.img WSL_ROOT_INIT=1 panic=-1 nr_cpus=24 hv_utils.timesync_implicit=1"
    return {
        **{f"/proc/sys/vm/{name}": f"{value}\n" for name, value in kernel_values.items()},
        "/proc/sys/fs/inotify/max_user_watches": "524288\n",
        "/proc/cmdline": f"{cmdline} console=hvc0 debug pty.legacy_count=0 WSL_ENABLE_CRASH_DUMP=1\n",
        "/etc/wsl.conf": "[boot]\nsystemd=true\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
        "/mnt/c/Users/user/.wslconfig": wslconfig.replace("\n", "\r\n")
        or "[wsl2]\r\nmemory=50GB\r\nprocessors=24\r\nswap=20GB\r\n",
    }


#: What guides recommend (the second and third line of [wsl2] stand in the wrong section, the last two mean nothing).
FOLKLORE = """[wsl2]
memory=56GB
processors=24
swap=20GB
autoMemoryReclaim=gradual
sparseVhd=true
pageReporting=true
guessVhdSize=true
kernelCommandLine = sysctl.vm.swappiness=10 sysctl.vm.overcommit_memory=1
"""


def kernel_log(*lines: str, first: int = 100, seconds: float = 1.2) -> Files:
    """Return /dev/kmsg with lines of the kernel, a tenth of a second apart."""
    records = [f"6,{first + i},{int((seconds + i / 10) * 1e6)},-;{line}\n" for i, line in enumerate(lines)]
    return {"/dev/kmsg": "".join(records)}


def wsl_commands(version: str, networking: str = "nat", distro: str = "Ubuntu-24.04") -> dict[str, str]:
    """Return what WSL's own tools print (src/linux/init/wslinfo.cpp)."""
    return {
        "wslinfo --version": f"{version}\n",
        "wslinfo --networking-mode": f"{networking}\n",
        "wslpath -w /": f"\\\\wsl.localhost\\{distro}\\\n",
    }


def process(pid: int, name: str, rss: int, command: str, swap: int = 0, framework: str = "") -> Files:
    """Return the files of one process (man proc_pid_stat)."""
    numbers = f"S 1 {pid} {pid} 0 -1 4194560 1000 0 0 0 500 100 0 0 20 0 8 0 {pid * 10} {rss + swap + GIB}"
    files = {
        f"/proc/{pid}/stat": f"{pid} ({name}) {numbers} {rss // PAGE}\n",
        f"/proc/{pid}/status": f"Uid:\t1000\t1000\t1000\t1000\nVmSwap:\t{swap // 1024:8} kB\n",
        f"/proc/{pid}/comm": f"{name}\n",
        f"/proc/{pid}/cmdline": "\0".join(command.split()) + "\0",
    }
    if framework:
        files[f"/proc/{pid}/maps"] = f"0-1 r-xp 0 00:00 0 {framework}\n"
    return files


TORCH = "/site-packages/torch/lib/libtorch_cpu.so"


def cgroup(
    path: str, limit: int | None, current: int, file: int = 0, hits: int = 0, hits_below: int = 0, kills: int = 0
) -> Files:
    """Return the files of a cgroup of v2 (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    folder, all_hits = f"/sys/fs/cgroup{path}", hits + hits_below
    return {
        f"{folder}/memory.max": f"{'max' if limit is None else limit}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.swap.max": "max\n",
        f"{folder}/memory.swap.current": "0\n",
        f"{folder}/memory.stat": f"anon {current - file}\nfile {file}\nslab_reclaimable {file // 20}\n"
        f"inactive_anon 0\nactive_anon {current - file}\ninactive_file {file}\nactive_file 0\n",
        f"{folder}/memory.events": f"low 0\nhigh 0\nmax {all_hits}\noom {kills}\noom_kill {kills}\noom_group_kill 0\n",
        f"{folder}/memory.events.local": f"low 0\nhigh 0\nmax {hits}\noom {kills}\noom_kill 0\noom_group_kill 0\n",
    }


NOT_AVAILABLE = 2**64 - 1
NO = {"error": "NOT_SUPPORTED"}


def nvml(*gpus: dict[str, Any], driver: str, cuda: int, names: dict[int, str] | None = None) -> dict[str, Any]:
    """Return a recording of NVML with these GPUs."""
    system: dict[str, Any] = {
        "nvmlSystemGetDriverVersion": driver,
        "nvmlSystemGetCudaDriverVersion_v2": cuda,
        "nvmlSystemGetNVMLVersion": f"{cuda // 1000}.{driver}",
    }
    for pid, name in (names or {}).items():
        system[f"nvmlSystemGetProcessName({pid})"] = name
    return {"system": system, "gpus": list(gpus)}


def gpu(
    number: int, name: str, total: int, used: int, busy: int, watts: int, processes: dict[int, int] | None = None
) -> dict[str, Any]:
    """Return a GeForce card under Linux; ``processes`` maps pid to bytes."""
    reserved = total // 50
    return {
        "nvmlDeviceGetUUID": f"GPU-00000000-0000-0000-0000-{number + 1:012}",
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetPciInfo": {"busId": f"00000000:{number + 1:02X}:00.0"},
        "nvmlDeviceGetVbiosVersion": "98.03.58.40.9C",
        "nvmlDeviceGetCudaComputeCapability": [12, 0] if "50" in name else [8, 9],
        "nvmlDeviceGetDriverModel": NO,
        "nvmlDeviceGetMemoryInfo(33554472)": {
            "total": total,
            "reserved": reserved,
            "free": total - reserved - used,
            "used": used,
        },
        "nvmlDeviceGetMemoryInfo": {"total": total, "free": total - reserved - used, "used": used + reserved},
        "nvmlDeviceGetUtilizationRates": {"gpu": busy, "memory": busy // 2},
        "nvmlDeviceGetTemperature(0)": 35 + busy // 3,
        "nvmlDeviceGetPowerUsage": watts * 1000,
        "nvmlDeviceGetEnforcedPowerLimit": 300000,
        "nvmlDeviceGetClockInfo(0)": 2500 if busy else 180,
        "nvmlDeviceGetClockInfo(1)": 2500 if busy else 180,
        "nvmlDeviceGetClockInfo(2)": 14001 if busy else 405,
        "nvmlDeviceGetClockInfo(3)": 2000 if busy else 600,
        "nvmlDeviceGetPerformanceState": 1 if busy else 8,
        "nvmlDeviceGetCurrentClocksEventReasons": 0 if busy else 1,
        "nvmlDeviceGetComputeRunningProcesses_v3": [
            {"pid": pid, "usedGpuMemory": size} for pid, size in (processes or {}).items()
        ],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [],
        "nvmlDeviceGetFanSpeed": 30 + busy // 4,
        "nvmlDeviceGetEncoderUtilization": [0, 167000],
        "nvmlDeviceGetDecoderUtilization": [0, 167000],
        "nvmlDeviceGetCurrPcieLinkGeneration": 5 if busy else 1,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetTotalEnergyConsumption": 1234567000,
        "nvmlDeviceGetTemperatureThreshold(0)": 95,
        "nvmlDeviceGetTemperatureThreshold(1)": 90,
        "nvmlDeviceGetDisplayActive": 0,
    }


def gpu_under_wsl(answers: dict[str, Any]) -> dict[str, Any]:
    """Return the card as WDDM shows it: no memory of single processes, Xwayland of another namespace.

    https://github.com/Syllo/nvtop/issues/432, https://github.com/XuehaiPan/nvitop/issues/49,
    https://github.com/NVIDIA/nvidia-docker/issues/1604
    """
    compute = answers["nvmlDeviceGetComputeRunningProcesses_v3"]
    return {
        **answers,
        "nvmlDeviceGetDriverModel": [0, 0],
        "nvmlDeviceGetComputeRunningProcesses_v3": [{**p, "usedGpuMemory": NOT_AVAILABLE} for p in compute],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [{"pid": 32, "usedGpuMemory": NOT_AVAILABLE}],
        "nvmlDeviceGetDisplayActive": 1,
        "nvmlDeviceGetTotalEnergyConsumption": NO,
    }
