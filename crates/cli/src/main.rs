//! The `coldpress` program.
fn main() {}
