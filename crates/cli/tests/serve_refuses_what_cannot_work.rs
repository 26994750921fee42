//! Options under which a server would start and then refuse everybody, or let everybody in, are refused at once.
//!
//! What went wrong: `--api-key "$KEY"` with an empty variable served without a key, a queue of 0 places refused every request even
//! when nobody was computed for, and 1 KiB of memory for requests told each client that its few words need a larger budget.

use crate::common::{about_demo, stderr};

#[test]
fn with_exit_code_2_and_the_option_by_name() {
    let cases = [
        (["--api-key", ""], "--api-key is empty"),
        (["--alias", " "], "--alias is empty"),
        (["--cors", "chat.example"], "--cors takes an origin"),
        (["--cors", "https://chat.example/page"], "--cors takes an origin"),
        (["--queue", "0"], "'--queue <N>'"),
        (["--request-memory", "1KiB"], "'--request-memory <SIZE>'"),
        (["--parallel", "0"], "'--parallel <N>'"),
        (["--host", "[::1]"], "--host takes an address"),
    ];
    for (option, wanted) in cases {
        // A budget that cannot work ends what is not refused.
        let refused = about_demo("serve", &["--port", "0", "--budget", "1MiB", option[0], option[1]]);
        assert_eq!(refused.status.code(), Some(2), "{option:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(wanted), "{option:?}: {}", stderr(&refused));
    }
}
