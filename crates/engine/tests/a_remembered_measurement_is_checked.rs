//! A remembered measurement of a disk is used only when it is whole and of this disk; anything else is as good as none.
//!
//! The cache folder may come from another machine, an older version or a full disk. A wrong entry must neither end a run nor
//! make the reader ask for a thousand reads at a time.

use crate::common::{demo, load};
use coldpress::{Basis, LoadConfiguration, PackUse, ReaderKind, Residency, Silent, pack_model};

#[test]
fn whole_and_of_this_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let pack = folder.path().join("model.cpack");
    pack_model(&demo(), &pack, None, &mut Silent).expect("packs");
    let device = coldpress_memory::sys::device_facts(&pack).expect("a device");
    if device.is_memory {
        println!("SKIPPED: the file system keeps files in memory");
        return;
    }
    let configuration = LoadConfiguration::default()
        .residency(Residency::Streamed)
        .pack(PackUse::File(pack))
        .disk_probe(folder.path().to_owned());
    let basis = |text: &dyn Fn(u32) -> String, configuration: &LoadConfiguration| {
        for class in 12..31 {
            let name = format!("disk-{:x}-{class}-pack.json", device.device);
            std::fs::write(folder.path().join(name), text(class)).expect("writes");
        }
        coldpress::plan(&demo(), configuration).expect("plans").reading.basis
    };
    let entry = |version: u32,
                 file_system: u64,
                 bytes: u64,
                 class: u32,
                 depth: usize,
                 split: usize,
                 access: &str| {
        format!(
            r#"{{"version":{version},"device":{},"file_system":{file_system},"file_system_bytes":{bytes},"size_class":{class},"uring":false,"depth":{depth},"split":{split},"access":"{access}","bytes_per_second":1e9}}"#,
            device.device
        )
    };
    let (kind, size) = (device.file_system, device.bytes.0);
    assert_eq!(basis(&|class| entry(1, kind, size, class, 8, 2, "direct"), &configuration), Basis::Cached);

    let bad: [&dyn Fn(u32) -> String; 10] = [
        &|_| String::new(),
        &|_| "{".to_owned(),
        &|class| entry(1, kind, size, class, 8, 2, "direct")[..60].to_owned(),
        &|class| entry(0, kind, size, class, 8, 2, "direct"),
        &|class| entry(1, kind + 1, size, class, 8, 2, "direct"),
        &|class| entry(1, kind, size + 1, class, 8, 2, "direct"),
        &|class| entry(1, kind, size, class + 1, 8, 2, "direct"),
        &|class| entry(1, kind, size, class, 100_000, 2, "direct"),
        &|class| entry(1, kind, size, class, 8, 0, "direct"),
        &|class| entry(1, kind, size, class, 8, 2, "kept"),
    ];
    for (index, text) in bad.into_iter().enumerate() {
        assert_eq!(basis(text, &configuration), Basis::Default, "entry {index}");
    }
    // A model this small is not measured; it loads with the default.
    assert_eq!(load(&demo(), &configuration).status().plan.reading.basis, Basis::Default);

    let good = |class| entry(1, kind, size, class, 8, 2, "direct");
    let forced = configuration.clone().reader(ReaderKind::Pread);
    assert_eq!(basis(&good, &forced), Basis::Forced, "who names a reader gets it");
    let paged = configuration.residency(Residency::Paged);
    assert_eq!(basis(&good, &paged), Basis::Default, "what was measured past the page cache is not for it");
}
