//! Prints what this machine gives the process, and what the process holds.

use coldpress_memory::{MachineFacts, MemoryWatch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let facts = MachineFacts::detect()?;
    println!("{facts:#?}");
    println!("default budget {}", facts.default_budget());
    println!("{:#?}", MemoryWatch::new().read()?);
    Ok(())
}
