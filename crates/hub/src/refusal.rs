//! What a status of the hub means, and what the user can do about it.

use crate::client::{Client, Head};
use crate::error::HubError;
use crate::retry::Failure;

/// Passes 2xx.
///
/// # Errors
/// Any other status: worth another try, or final with the way out.
pub(crate) fn check(head: &Head, client: &Client, repo: &str, revision: &str) -> Result<(), Failure> {
    let status = head.status;
    match status {
        200..=299 => return Ok(()),
        408 | 425 | 429 | 500.. => {
            let problem = format!("the hub answers {status}{}", meaning(status));
            return Err(Failure::Busy { problem, wait: head.wait });
        }
        _ => {}
    }
    let way_out = way_out(head, client, repo, revision);
    let endpoint = client.endpoint.base.clone();
    Err(HubError::Refused { repo: repo.to_owned(), endpoint, status, way_out }.into())
}

fn meaning(status: u16) -> &'static str {
    match status {
        429 => " (too many requests)",
        503 => " (not available)",
        _ => "",
    }
}

fn way_out(head: &Head, client: &Client, repo: &str, revision: &str) -> String {
    let page = client.endpoint.url(&[repo]);
    let has_token = client.has_token();
    match (head.status, head.error_code.as_str()) {
        (_, "GatedRepo") if has_token => {
            format!("the repository is gated; accept its terms at {page} with the account that your token belongs to")
        }
        (_, "GatedRepo") => {
            format!("the repository is gated; accept its terms at {page}, then set HF_TOKEN to a token of your account")
        }
        (404, "RevisionNotFound") => format!("it has no revision {revision:?}; leave --revision away for the main branch"),
        (404, "EntryNotFound") => "the file is gone; run the command again, the repository has changed".to_owned(),
        (401 | 404, "RepoNotFound") if !has_token => {
            "there is no such repository, or it is private; check the name, and set HF_TOKEN if it is yours".to_owned()
        }
        (401, _) if has_token => {
            "your token is not taken; renew HF_TOKEN (or the token file of Hugging Face), or unset it where the repository is public".to_owned()
        }
        (401, _) => "it is not for everybody; set HF_TOKEN to a token of your account, after accepting its terms where it has some".to_owned(),
        (403, _) if has_token => {
            format!("your token does not allow this; accept the repository's terms at {page}, and give the token the right to read it")
        }
        (403, _) => format!("this is not allowed to strangers; accept the repository's terms at {page}, then set HF_TOKEN"),
        (404, _) => "there is no such repository or revision; check the name".to_owned(),
        _ => "this is not expected of a hub; check HF_ENDPOINT".to_owned(),
    }
}
