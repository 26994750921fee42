//! Do registered buffers and files help io_uring to read records?
//!
//! Reads a large file past the page cache at random places in three ways, in turns: with plain reads into ordinary memory as the
//! store does, with a buffer registered with the kernel (`IORING_REGISTER_BUFFERS`, `ReadFixed`), and with the file registered
//! as well. Prints a table: for each size of read and depth the medians of five rounds of 0.3 seconds, and the smallest and
//! largest rate. CPU time is all that the process is charged with, user and system. The memory is like that of slots: one
//! `Buffer`, touched before. Judges nothing; what was found stands in `docs/streaming.md`.
//!
//! ```sh
//! cargo run --release -p coldpress-experts --example registered_buffers -- BIG_FILE [RECORD_BYTES]
//! ```
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("io_uring is part of Linux; there is nothing to measure here");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use coldpress_experts::{FileAccess, ReadFile};
    use coldpress_memory::{Buffer, Bytes, Ledger, Purpose};
    use io_uring::{IoUring, opcode, types};

    const DEPTHS: [usize; 3] = [1, 4, 16];
    const DEPTH_MAX: usize = 16;
    const ROUNDS: usize = 5;
    const ROUND_TIME: Duration = Duration::from_millis(300);
    const BLOCK_BYTES: usize = 4096;
    /// 4.8 MiB in whole blocks.
    const RECORD_BYTES_DEFAULT: usize = 1229 * BLOCK_BYTES;

    /// A way to read; its number is the place in `Setup::rings`.
    #[derive(Clone, Copy, PartialEq)]
    enum Way {
        Plain,
        Buffers,
        BuffersAndFile,
    }

    const WAYS: [(Way, &str); 3] = [
        (Way::Plain, "plain"),
        (Way::Buffers, "registered buffer"),
        (Way::BuffersAndFile, "registered buffer and file"),
    ];

    /// Figures of one round, or their medians.
    #[derive(Clone, Copy)]
    struct Figures {
        gigabytes_per_second: f64,
        latency_us_p50: f64,
        cpu_us_per_read: f64,
    }

    struct Setup {
        file: i32,
        file_bytes: u64,
        /// `DEPTH_MAX` records. The buffer behind it is never freed and nothing else uses it.
        memory: *mut u8,
        rings: Vec<IoUring>,
        random: u64,
    }

    pub fn run() -> Result<(), Box<dyn Error>> {
        let mut arguments = std::env::args().skip(1);
        let path = arguments.next().ok_or("usage: registered_buffers BIG_FILE [RECORD_BYTES]")?;
        let record = arguments.next().map_or(Ok(RECORD_BYTES_DEFAULT), |bytes| bytes.parse())?;
        let record = record.max(1).next_multiple_of(BLOCK_BYTES);
        let file = ReadFile::open(Path::new(&path))?;
        if file.access() != FileAccess::Direct {
            return Err(
                format!("{path}: no direct reads; the figures would be those of the page cache").into()
            );
        }
        let sizes = [64 << 10, 1 << 20, record];
        let largest = sizes.into_iter().max().expect("there are sizes");
        if file.length() < 2 * largest as u64 {
            return Err(format!("{path} has {} bytes, too few for reads of {largest}", file.length()).into());
        }
        let bytes = DEPTH_MAX * largest;
        let mut buffer = Buffer::new(&Ledger::unlimited(), Purpose::Scratch, Bytes(bytes as u64))?;
        buffer.as_bytes_mut().fill(1);
        // Leaked: whatever fails, the kernel's pointers stay valid as long as the process lives.
        let memory = Box::leak(Box::new(buffer)).as_mut_ptr();
        let rings = WAYS.map(|_| IoUring::new(DEPTH_MAX as u32));
        let rings = rings.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut setup = Setup {
            file: file.file().as_raw_fd(),
            file_bytes: file.length(),
            memory,
            rings,
            random: 0x9E37_79B9_7F4A_7C15,
        };
        let part = libc::iovec { iov_base: memory.cast(), iov_len: bytes };
        for (ring, (way, name)) in setup.rings.iter().zip(WAYS) {
            let started = Instant::now();
            if way != Way::Plain {
                // SAFETY: the memory lives as long as the process.
                unsafe { ring.submitter().register_buffers(&[part]) }
                    .map_err(|error| format!("{bytes} bytes cannot be registered: {error}"))?;
            }
            if way == Way::BuffersAndFile {
                ring.submitter().register_files(&[setup.file])?;
            }
            println!("{name}: {bytes} bytes made ready in {:.0} us", started.elapsed().as_secs_f64() * 1e6);
        }
        println!(
            "\n| bytes per read | depth | way | GB/s (smallest, largest) | latency p50, us | CPU per read, us |"
        );
        println!("|---|---|---|---|---|---|");
        for size in sizes {
            for depth in DEPTHS {
                setup.compare(size, depth)?;
            }
        }
        Ok(())
    }

    impl Setup {
        /// All ways in turns, each round beginning with another one; prints a line for each.
        fn compare(&mut self, size: usize, depth: usize) -> Result<(), Box<dyn Error>> {
            let mut rounds: [Vec<Figures>; 3] = Default::default();
            for round in 0..ROUNDS {
                for turn in 0..WAYS.len() {
                    let way = (round + turn) % WAYS.len();
                    rounds[way].push(self.measure(way, size, depth)?);
                }
            }
            for ((_, name), rounds) in WAYS.into_iter().zip(&rounds) {
                let rates = rounds.iter().map(|figures| figures.gigabytes_per_second);
                println!(
                    "| {size} | {depth} | {name} | {:.2} ({:.2}, {:.2}) | {:.0} | {:.1} |",
                    median(rates.clone()),
                    rates.clone().fold(f64::MAX, f64::min),
                    rates.fold(0.0, f64::max),
                    median(rounds.iter().map(|figures| figures.latency_us_p50)),
                    median(rounds.iter().map(|figures| figures.cpu_us_per_read)),
                );
            }
            Ok(())
        }

        /// One round.
        fn measure(&mut self, way: usize, size: usize, depth: usize) -> Result<Figures, Box<dyn Error>> {
            let mut submitted = [Instant::now(); DEPTH_MAX];
            let mut idle: Vec<usize> = (0..depth).collect();
            let mut latencies_us = Vec::with_capacity(1 << 16);
            let cpu_before = cpu_time()?;
            let started = Instant::now();
            loop {
                if started.elapsed() < ROUND_TIME {
                    for place in idle.drain(..) {
                        submitted[place] = Instant::now();
                        self.push(way, place, size);
                    }
                }
                if idle.len() == depth {
                    break;
                }
                self.rings[way].submit_and_wait(1)?;
                for entry in self.rings[way].completion() {
                    if entry.result() != size as i32 {
                        return Err(format!("a read of {size} bytes gave {}", entry.result()).into());
                    }
                    let place = entry.user_data() as usize;
                    latencies_us.push(submitted[place].elapsed().as_secs_f64() * 1e6);
                    idle.push(place);
                }
            }
            let elapsed = started.elapsed().as_secs_f64();
            let reads = latencies_us.len() as f64;
            Ok(Figures {
                gigabytes_per_second: reads * size as f64 / elapsed / 1e9,
                latency_us_p50: median(latencies_us.into_iter()),
                cpu_us_per_read: (cpu_time()? - cpu_before).as_secs_f64() * 1e6 / reads,
            })
        }

        /// Pushes a read of `size` bytes from a random block into place number `place` of the memory.
        fn push(&mut self, way: usize, place: usize, size: usize) {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let blocks = (self.file_bytes - size as u64) / BLOCK_BYTES as u64;
            let offset = self.random % blocks * BLOCK_BYTES as u64;
            // SAFETY: `place < DEPTH_MAX` and `size` is at most the largest size, so the place lies in the memory.
            let start = unsafe { self.memory.add(place * size) };
            let length = size as u32;
            let entry = match WAYS[way].0 {
                Way::Plain => opcode::Read::new(types::Fd(self.file), start, length).offset(offset).build(),
                Way::Buffers => {
                    opcode::ReadFixed::new(types::Fd(self.file), start, length, 0).offset(offset).build()
                }
                Way::BuffersAndFile => {
                    opcode::ReadFixed::new(types::Fixed(0), start, length, 0).offset(offset).build()
                }
            };
            // SAFETY: the memory lives as long as the process, and only one read at a time goes to a place of it.
            let pushed = unsafe { self.rings[way].submission().push(&entry.user_data(place as u64)) };
            pushed.expect("the ring has room for every place");
        }
    }

    /// User and system time that this process has used.
    fn cpu_time() -> std::io::Result<Duration> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the pointer is valid for one `rusage`, which the call fills when it succeeds.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: as above.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
        Ok(time(usage.ru_utime) + time(usage.ru_stime))
    }

    /// The middle value; 0 when there is none.
    fn median(values: impl Iterator<Item = f64>) -> f64 {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    }
}
