//! `coldpress inspect` shows a page; the lists of keys and tensors come when they are asked for.

use std::path::Path;
use std::process::Command;

fn inspect(arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_coldpress"));
    let output = command.current_dir(root).args(["inspect", "models/demo.gguf"]).args(arguments).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

const PAGE: &str = "\
models/demo.gguf  17.7 MiB

GGUF; qwen3moe, 8 layers of hidden size 256, 8192 tokens, context 2048
experts: 32 in each of 8 layers, 4 per token, 56.0 KiB each

98 tensors, 17.5 MiB
  embedding                     Q8_0          1     2.1 MiB   12.2 %
  attention                     Q8_0         32     1.6 MiB    9.1 %
  router                        F32           8   256.0 KiB    1.4 %
  experts, gate                 Q4_0          8     4.5 MiB   25.7 %
  experts, up                   Q4_0          8     4.5 MiB   25.7 %
  experts, down                 Q4_0          8     4.5 MiB   25.7 %
  norms                         F32          33    21.0 KiB    0.1 %

layers 0 to 7, each: 1.9 MiB
  attention                     Q8_0          4   204.0 KiB
  router                        F32           1    32.0 KiB
  experts, gate                 Q4_0          1   576.0 KiB
  experts, up                   Q4_0          1   576.0 KiB
  experts, down                 Q4_0          1   576.0 KiB
  norms                         F32           4     2.5 KiB

coldpress can run this model
";

#[test]
fn the_bundled_model_in_a_page() {
    assert_eq!(inspect(&[]), PAGE);
}

#[test]
fn lists_come_when_they_are_asked_for() {
    let listed = inspect(&["--tensors", "--metadata", "--fingerprint"]);
    for part in ["blk.7.ffn_down_exps.weight", "general.architecture", "fingerprint: "] {
        assert!(listed.contains(part) && !PAGE.contains(part), "{part}");
    }
}
