"""Chinese, in the words that users of WSL and PyTorch write among themselves."""

from __future__ import annotations

from wslgpud.alerts.texts.words import MemoryText, RuleText, Words

RULES = {
    "memory_exhaustion": RuleText("内存将耗尽", (), (), ""),
    "vram_stress": RuleText(
        "显存压力测试",
        ("{resource} 的显存压力测试：{text}",),
        (),
        "用 wslgpud stress history 查看历次结果，用 wslgpud stress show ID 查看某次的明细。若数据出错：先取消超频，"
        "再运行 wslgpud stress --full；仍然出错则应更换显卡。",
    ),
    "oom_kill": RuleText(
        "内存不足，进程被杀",
        (
            "wslgpud 未运行期间，内核因内存不足杀死了 {kills} 个进程，最后一个是 {victim}",
            "内存不足，内核于 {died} 杀死了 {who}，占用 {size_bytes}",
            "内存不足，内核杀死了 {who}，占用 {size_bytes}",
            "内存不足，内核杀死了一个进程，可能是 {likely}，占用 {size_bytes}",
            "内存不足，内核杀死了一个进程",
        ),
        (
            "均因所在 cgroup 的限制：{victims}。",
            "{victim} (pid {pid}) 占用私有内存 {anon_bytes}，共享内存 {shmem_bytes}。",
            "内核日志不可读：OOM 计数增加时，{likely} 已消失，其内存也已释放。",
            "内核的 OOM 计数增加了；内核日志不可读，因此不知道是哪个进程。",
        ),
        "减少并行任务数 (MAX_JOBS, -j, num_workers)，减小 batch size 或上下文长度；或在 .wslconfig 的 [wsl2] 中增大 "
        "memory= 和 swap=。用 wslgpud incidents 查看是谁在增长。",
    ),
    "vram_residency_failed": RuleText(
        "显存无法驻留",
        ("{resource}: Windows 无法调入显存 (make_resident 失败)",),
        ("内核：{text}。在 WSL2 下这意味着显存已用尽，即使看上去还有空闲。",),
        "保存 checkpoint 并停止占用显卡的程序；不要反复重试：显存满时重试曾导致 Windows 崩溃。之后把用量控制在约 80% 以内，"
        "关闭占用显存的桌面程序，不要用 expandable_segments 和大量锁页内存 (WSL 有限制)。",
    ),
    "gpu_error": RuleText(
        "显卡报错",
        ("{resource}: 驱动报告 Xid {xid}",),
        ("内核：{text}",),
        "先保存工作。错误号含义见 https://docs.nvidia.com/deploy/xid-errors/ ；48、63、64、92、94、95 与显存有关，"
        "79 表示显卡已从总线掉线：检查供电、线缆和显卡。",
    ),
    "gpu_lost": RuleText(
        "显卡丢失",
        ("{resource} 不再响应",),
        ("驱动仍列出显卡 {uuid}，但无法访问它。",),
        "其上的程序已经失败。请重启 (WSL2: 在 Windows 中执行 wsl --shutdown 后再启动)；若再次发生，检查供电、散热和转接线。",
    ),
    "gpu_driver_gone": RuleText(
        "显卡驱动无响应",
        ("NVIDIA 驱动已停止响应",),
        ("{error}",),
        "如果刚在 Windows 中更新了驱动：执行 wsl --shutdown 后再启动。若是 Windows 重置驱动 (TDR)，它会自行恢复。"
        "内存监控不受影响。",
    ),
    "swap_thrash": RuleText(
        "内存抖动",
        (
            "内存不足导致程序停顿：{stalled_ratio} 的时间被浪费",
            "交换区抖动：换入 {in_bytes_per_second}，换出 {out_bytes_per_second}",
        ),
        ("交换区：换入 {in_bytes_per_second}，换出 {out_bytes_per_second}。",),
        "暂停或停止最大的程序 (kill -STOP 不会丢失工作)，然后减少并行任务。增大 swap 没有用，增大内存才有用 "
        "(.wslconfig 的 memory=)。",
    ),
    "gpu_throttled": RuleText(
        "显卡降频",
        ("{resource} 在 {temperature_celsius} °C 被降频 ({reasons})", "{resource} 被降频 ({reasons})"),
        ("驱动给出的原因：{reasons}。普通的功耗上限不算在内。",),
        "检查风扇、灰尘和风道，或降低功耗上限 (在 Windows 中 nvidia-smi -pl)：最后 20% 的功耗只换来百分之几的速度。"
        "hw_power_brake 说明是电源问题。",
    ),
    "vram_spill": RuleText(
        "显存溢出到内存",
        (
            "{resource} 已满：{grown_bytes} 被移到内存，其上的程序会慢很多倍",
            "{resource} 已满，显存正被移到内存：其上的程序会慢很多倍",
        ),
        (
            "Windows 统计：专用显存 {dedicated_bytes}，共享内存 {shared_bytes}。",
            "Windows 统计：共享内存 {shared_bytes}。",
        ),
        "程序不会报错，只是极慢；显卡一直是满的，Windows 就不会把它移回来。减小 batch size 或上下文长度，使用 gradient "
        "checkpointing，或关闭占用这张卡的桌面程序。WSL2 不理会 Windows 的“首选无系统内存回退”，"
        "torch.cuda.set_per_process_memory_fraction 有效。",
    ),
    "windows_memory_low": RuleText(
        "Windows 内存不足",
        (
            "Windows 只能再提交 {commit_left_bytes} / {commit_limit_bytes}：Windows 的程序即将失败",
            "Windows 内存不足：剩 {available_bytes} / {total_bytes}，WSL 占用 {vm_bytes}",
            "Windows 内存不足：剩 {available_bytes} / {total_bytes}",
        ),
        (
            "WSL 的虚拟机占用 {vm_bytes}，其中 {unreturned_bytes} Linux 并未使用。",
            "WSL 的虚拟机占用 {vm_bytes}。",
        ),
        "关闭 Windows 中的程序。Linux 只归还空闲的内存：停止不需要的程序，然后 sync; echo 1 | sudo tee "
        "/proc/sys/vm/drop_caches。长期办法：在 .wslconfig 的 [wsl2] 中减小 memory=，在 [experimental] 中设 "
        "autoMemoryReclaim=gradual，并增大页面文件。",
    ),
    "state_disk_full": RuleText(
        "磁盘将满",
        ("磁盘将满：{place} 只剩 {bytes}，wslgpud 的历史数据在此",),
        (),
        "清理空间 (checkpoint、~/.cache/huggingface、pip cache purge、docker system prune)。磁盘写满后训练会丢失 "
        "checkpoint；wslgpud 仍会继续告警。",
    ),
    "windows_disk_full": RuleText(
        "Windows 磁盘将满",
        ("Windows 磁盘将满：{place} 只剩 {bytes}",),
        ("Linux 的磁盘是其上的一个会增长的文件 (ext4.vhdx)，与 df 在里面显示的数字无关。",),
        "立即在 Windows 中清理空间：写满后 WSL 会把磁盘挂载为只读，甚至无法启动。在 Linux 中删除文件并不会归还空间，"
        "需要压缩 vhdx (wsl --manage DISTRO --set-sparse)。",
    ),
    "read_only_disk": RuleText(
        "磁盘只读",
        ("{place} 变成了只读",),
        ("程序无法在那里保存任何东西，包括 checkpoint。",),
        "在 WSL2 下这通常由虚拟磁盘出错或 Windows 磁盘写满引起：先保存到别处，在 Windows 中清理空间，wsl --shutdown，"
        "检查磁盘 (dmesg, e2fsck) 后再继续。",
    ),
    "source_stale": RuleText(
        "数据缺失",
        ("{place} 不再提供数据：{error}", "{place} 不再提供数据"),
        ("预测、指标和历史中缺少这一数据源的内容。",),
        "原因见 wslgpud status 和守护进程的日志。",
    ),
    "clock_jump": RuleText(
        "时钟跳变",
        ("时钟跳变了 {seconds}：机器休眠过，或时间被重新设置", "时钟跳变"),
        ("{text}。",),
        "无需处理。历史数据在此处的空缺不是故障。",
    ),
    "store_failing": RuleText(
        "历史数据无法写入",
        ("历史数据无法写入：{error}", "历史数据无法写入"),
        ("告警照常发送；写不进去的数据会在内存中保留一段时间。",),
        "检查数据库所在的磁盘：写满、只读或损坏。",
    ),
    "store_damaged": RuleText(
        "历史数据库损坏",
        ("历史数据库损坏：{damage}", "历史数据库损坏"),
        ("损坏的文件会被移到一旁并新建数据库，能读出的数据会转存过去。",),
        "检查磁盘（dmesg、SMART）。用 wslgpud db check 查看现在的文件是否完好。",
    ),
    "unclean_end": RuleText(
        "异常终止",
        (
            "机器在 {last} 未经关机就终止了；当时 {growing} 在增长",
            "机器在 {last} 未经关机就终止了",
            "wslgpud 在 {killed} 被杀死，现已重新运行",
        ),
        ("{trouble}", "最后一次采样 {last}。"),
        "用 wslgpud incidents 查看最后几分钟：谁在增长、还剩多少、内核说了什么。",
    ),
}  # fmt: skip

MEMORY = MemoryText(
    starts=("{resource} 约 {eta_seconds}后耗尽 ({range})：", "{resource} 约 {eta_seconds}后耗尽：",
            "{resource} 已 {paused_seconds}没有增长：", "{resource} 快满了："),
    ends=(
        "以前曾达 {peak_bytes}，剩 {left_bytes} / {capacity_bytes}",
        "{rate_bytes_per_second}，剩 {left_bytes} / {capacity_bytes}",
        "剩 {left_bytes} / {capacity_bytes}",
    ),
    causes={
        "growth": ("{resource} 的用量已持续增长 {window_seconds}。",),
        "steps": ("{resource} 的用量约每 {window_seconds}上一个台阶，再来几次就放不下了。",),
        "pressure": ("内存不足，所有程序在大部分时间里停顿。",),
        "stall": ("机器因内存压力而停顿过。",),
        "limit": ("{resource} 不断触及上限。",),
        "oom": ("{resource} 上刚有一次分配失败，或有进程因此被杀。",),
        "paused": ("目前已没有 {resource} 将耗尽的迹象，但仍可能继续增长。",),
        "expected": ("{who} 以前运行时 {resource} 用量曾达 {peak_bytes}；现在只剩 {left_bytes}，可能不够。",),
    },
    growing=("正在增长：{who}。",),
    chances=("{within_seconds}内耗尽的概率：{chance_ratio}。",),
    advice={
        "ram": "保存 checkpoint 或手头的工作，然后停止或重启正在增长的程序。加载模型或数据集时也会增长，但会自行停止。",
        "paused": "除非再次增长，否则无需处理；保持平稳后告警会自行结束。",
        "expected": "先腾出内存，或以更小的规模启动：更少的任务或 worker，更小的 batch。",
        "group": "减少同时运行的数量：编译用 MAX_JOBS 或 -j，数据加载用 num_workers；每个都要占用自己的内存。",
        "jobs": "减少同时运行的数量：这里大约能放下 {jobs} 个 (编译用 MAX_JOBS={jobs} 或 -j{jobs}，数据加载用 "
        "num_workers={jobs})。",
        "tmpfs": "删除 /dev/shm 或 tmpfs 中的文件，或减少共享内存的数据加载进程。",
        "kernel": "关闭不需要的程序；不是单个进程的问题。slabtop 可显示哪种内核缓存在增长，常见的是驱动或 /mnt/c 下的文件。",
        "huge pages": "大页内存被预留，其他程序不能用：减小 vm.nr_hugepages。",
        "gpu": "保存 checkpoint，然后减小 batch size 或上下文长度，或停止这张卡上的其他进程；WSL2 下桌面程序也占用显存。"
        "JAX 和 TensorFlow 启动时会预先占用大部分显存，这是正常的。PyTorch 的 expandable_segments 在 WSL2 下不可靠。",
        "cgroup": "提高该组的上限，或停止组内正在增长的程序。",
    },
)  # fmt: skip

WORDS = Words(
    over="已结束：{what} ({resource})",
    digest="{count} 条告警：{headline}",
    repeated="再次告警：{headline}",
    levels={"ok": "正常", "info": "提示", "warning": "警告", "critical": "严重", "emergency": "紧急"},
    rules=RULES,
    memory=MEMORY,
    space="",
    resources={
        "ram": "内存",
        "disk": "磁盘",
        "source": "数据源",
        "clock": "时钟",
        "store": "历史数据",
        "machine": "机器",
        "windows": "Windows",
    },
    unit_words={"min": "分钟", " s": " 秒", "/s": "/秒", " h": " 小时"},
)
