//! An output path that names something else than an earlier output of the same kind is refused and left as it is.
//! `pack --out` once replaced the model it read, and `logits --out` any file or device that it was given.

use std::fs;

use crate::common::{demo, run, stderr};

#[test]
fn outputs_replace_only_their_own_kind() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.gguf");
    fs::copy(demo(), &model).expect("a copy");
    let notes = folder.path().join("notes.txt");
    fs::write(&notes, "mine").expect("a file");
    let misnamed = folder.path().join("notes.cpack");
    fs::write(&misnamed, "mine too").expect("a file");
    let text = |path: &std::path::Path| path.to_str().expect("a UTF-8 path").to_owned();
    let before = fs::read(&model).expect("the copy");
    for out in [&model, &notes, &misnamed] {
        let (model, out) = (text(&model), text(out));
        for arguments in [
            vec!["pack", &model, "--out", &out],
            vec!["logits", &model, "--ids", "1", "--out", &out, "--ctx", "16"],
        ] {
            let output = run(&arguments);
            assert!(!output.status.success(), "{arguments:?} was accepted");
            let message = stderr(&output);
            assert!(message.contains("not overwritten"), "{message}");
        }
    }
    assert!(fs::read(&model).expect("the model") == before, "the model changed");
    assert_eq!(fs::read_to_string(&notes).expect("the notes"), "mine");
    assert_eq!(fs::read_to_string(&misnamed).expect("the notes"), "mine too");
    let left: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(left.len(), 3, "something was left behind: {left:?}");
}
