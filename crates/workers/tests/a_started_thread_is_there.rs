//! A thread is there when `start_thread` returns: nothing of its beginning is left for later.
//!
//! What could go wrong: on a crowded machine a new thread may wait for a processor until tokens are made, and then takes from
//! the heap what the runtime library needs for it.

use std::thread::Builder;

use coldpress_workers::start_thread;

/// The system's names of the threads of this process.
#[cfg(target_os = "linux")]
fn names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn it_has_its_name_when_the_call_returns() {
    for turn in 0..200 {
        let name = format!("started-{turn}");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let _ = ended.recv();
        };
        let thread = start_thread(Builder::new().name(name.clone()), work).expect("a thread");
        let names = names();
        drop(end);
        thread.join().expect("it ends");
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

#[test]
fn it_does_its_work() {
    let (tell, told) = std::sync::mpsc::channel();
    let thread =
        start_thread(Builder::new(), move || tell.send(7).expect("somebody listens")).expect("a thread");
    assert_eq!(told.recv(), Ok(7));
    thread.join().expect("it ends");
}
