//! `docs/kernels.md` is written from the dispatch table; a kernel that was added since is missing there.

use coldpress_kernels::matmul::entries;

const DOCUMENT: &str = include_str!("../../../docs/kernels.md");

#[test]
fn every_kernel_of_this_build_is_in_the_document() {
    for (format, isa) in entries() {
        let measured = DOCUMENT
            .split("\n## ")
            .find(|section| section.starts_with(&format!("{isa}\n")))
            .is_some_and(|section| section.contains(&format!("| {format} |")));
        let not_measured = DOCUMENT
            .lines()
            .find(|line| line.starts_with(&format!("| {isa} |")))
            .is_some_and(|line| line.contains(format.name()) || cfg!(target_arch = "aarch64"));
        assert!(measured || not_measured, "{isa} {format}: run the example kernel_report again");
    }
}
