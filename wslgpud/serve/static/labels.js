// Words for what the daemon only gives a name: levels, states, phases, figures, metrics.

import { t, template } from "./i18n.js";

const TABLES = {
  level: { ok: template("ok"), info: template("info"), warning: template("warning"), critical: template("critical"),
    emergency: template("emergency"), unknown: template("unknown") },
  health: { ok: template("ok"), absent: template("not on this machine"), failed: template("failed"), late: template("late") },
  role: { gpu: template("GPU"), training: template("training"), build: template("build") },
  learned: { seen: template("learned: an allocation failed there"), probable: template("probably learned") },
  night: { passed: template("passed"), findings: template("findings"), left: template("gave way to others"),
    skipped: template("skipped"), failed: template("failed") },
  finding: { problem: template("problem"), note: template("note"), good: template("good"),
    "could not tell": template("could not be determined"), "not applicable": template("not applicable here") },
  tier: { samples: template("samples"), minutes: template("minute summaries"), hours: template("hour summaries") },
  board: { memory: template("Memory"), headroom: template("Headroom"), vram: template("VRAM"), gpu: template("GPU"), pressure: template("Pressure"),
    cpu: template("CPU"), disk: template("Disk"), network: template("Network"), programs: template("Programs") },
  throttle: { gpu_idle: template("idle"), applications_clocks_setting: template("application clocks"), sw_power_cap: template("power limit"),
    hw_slowdown: template("hardware slowdown"), sync_boost: template("sync boost"), sw_thermal_slowdown: template("temperature (software)"),
    hw_thermal_slowdown: template("temperature (hardware)"), hw_power_brake_slowdown: template("power brake"), display_clock_setting: template("display clock") },
  figure: { usable_bytes: template("usable VRAM"), free_bytes: template("free VRAM"), total_bytes: template("VRAM managed by the driver"),
    spec_bytes: template("VRAM by specification"), visible_bytes: template("visible to CUDA"), reserved_bytes: template("reserved by the driver"),
    foreign_bytes: template("held by others"), context_bytes: template("CUDA context"), allocated_bytes: template("allocated by the test"),
    verified_bytes: template("verified"), checked_bytes: template("checked in total"), spilled_bytes: template("spilled into shared memory"),
    spill_start_bytes: template("spill begins at"), leak_bytes: template("not returned"), left_behind_bytes: template("left behind"),
    shared_grown_bytes: template("shared memory grew by"), errors: template("wrong words"), duration_seconds: template("Duration"), seconds: template("Duration"),
    write_median: template("write bandwidth (median)"), read_median: template("read bandwidth (median)"), change_median: template("read-write bandwidth (median)"),
    write_min: template("write bandwidth (least)"), read_min: template("read bandwidth (least)"), change_min: template("read-write bandwidth (least)"),
    peak_bandwidth: template("theoretical bandwidth"), rungs: template("allocation steps"), degraded_chunks: template("slow chunks"),
    contended: template("contended"), moved_chunks: template("moved chunks"), temperature_max_celsius: template("highest temperature"),
    power_max_watts: template("highest power"), memory_clock_hertz: template("memory clock"), slowed_ratio: template("time throttled"),
    ecc_corrected: template("ECC errors corrected"), ecc_uncorrected: template("ECC errors not corrected"), remapped_rows: template("rows remapped") },
  // of those on the boards; what the others are the daemon says in English
  help: { headroom_bytes: template("memory that can still be taken"), time_to_exhaustion_seconds: template("time until memory runs out, as forecast"),
    memory_available_bytes: template("memory available without swapping"), memory_anon_bytes: template("memory of the programs themselves"),
    memory_cached_bytes: template("file cache"), swap_free_bytes: template("free swap"), gpu_memory_used_bytes: template("VRAM in use"),
    gpu_memory_free_bytes: template("free VRAM"), gpu_utilization_ratio: template("share of time in which the GPU is busy"),
    gpu_temperature_celsius: template("GPU temperature"), gpu_power_watts: template("GPU power"), gpu_clock_hertz: template("GPU clocks"),
    pressure_stalled_seconds_total: template("time in which all tasks wait"), swap_in_bytes_total: template("data read back from swap"),
    page_major_faults_total: template("page faults that read from disk"), memory_alloc_stalls_total: template("allocations that had to wait"),
    cpu_seconds_total: template("CPU time by state"), load1: template("load average over 1 min"), processes_running: template("running processes"),
    disk_read_bytes_total: template("data read from disk"), disk_written_bytes_total: template("data written to disk"),
    disk_io_time_seconds_total: template("time in which the disk is busy"), network_receive_bytes_total: template("data received"),
    network_transmit_bytes_total: template("data sent"), program_resident_bytes: template("RAM of the programs worth watching"),
    program_swap_bytes: template("swap of the programs worth watching") },
};

export const known = (kind, name) => Object.hasOwn(TABLES[kind], name);

/** The words for a name; one that this page does not know stays as it is called. */
export const label = (kind, name) => (known(kind, name) ? t(TABLES[kind][name]) : String(name).replaceAll("_", " "));
