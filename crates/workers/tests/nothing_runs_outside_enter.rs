//! Threads that spin while a server is idle drain batteries and steal cores. After `enter`, and inside it when the
//! caller is busy with something else for long, the process must use next to no processor time.
#![cfg(not(loom))]
#![cfg(target_os = "linux")]

use std::time::Duration;

use coldpress_workers::Workers;

/// Processor time of this process so far, all threads, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    // Fields 14 and 15 of proc(5); the first after the name is number 3.
    fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")
}

#[test]
fn idle_pools_use_no_processor_time() {
    let workers = Workers::new(4);
    workers.enter(|team| team.for_each_chunk(100, |_, _| {}));
    let before = cpu_ticks();
    std::thread::sleep(Duration::from_millis(400));
    let outside = cpu_ticks() - before;
    assert!(outside <= 3, "{outside} ticks while nobody is inside");
    workers.enter(|team| {
        team.for_each_chunk(100, |_, _| {});
        let before = cpu_ticks();
        std::thread::sleep(Duration::from_millis(400));
        let inside = cpu_ticks() - before;
        assert!(inside <= 3, "{inside} ticks while the caller waits for something else");
    });
}
