//! Addresses at the hub: the endpoint that a user sets, paths below it, and where a redirect leads.
//!
//! Owns the two rules of redirects: the token goes to the endpoint's own scheme, host and port alone, and nothing goes from HTTPS to
//! HTTP.

use ureq::http::Uri;

use crate::HubError;

/// The public hub; `HF_ENDPOINT` names another one.
pub const PUBLIC_ENDPOINT: &str = "https://huggingface.co";

/// Longest address that is followed; those of signed downloads have some 1,500 letters.
const ADDRESS_BYTES_MAX: usize = 16 << 10;

/// Scheme, host and port: who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) secure: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Some(Self { secure, host, port })
    }

    /// Whether nobody but this machine sees what is sent.
    pub(crate) fn is_loopback(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']');
        self.host == "localhost"
            || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    }
}

/// A hub.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// Without a slash at the end.
    pub(crate) base: String,
    pub(crate) origin: Origin,
}

impl Endpoint {
    /// # Errors
    /// The text is no `http://` or `https://` address, or carries a password, a query or a fragment.
    pub(crate) fn parse(text: &str) -> Result<Self, HubError> {
        let refuse = |problem: &str| HubError::BadName {
            what: "HF_ENDPOINT",
            given: text.to_owned(),
            problem: format!("{problem}; it must be an address such as {PUBLIC_ENDPOINT}"),
        };
        let base = text.trim_end_matches('/');
        let uri: Uri = base.parse().map_err(|_| refuse("is no address"))?;
        let origin = Origin::of(&uri).ok_or_else(|| refuse("is no http:// or https:// address"))?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(refuse("holds a password: HF_TOKEN is for that"));
        }
        if uri.query().is_some() || base.contains('#') {
            return Err(refuse("has a query"));
        }
        Ok(Self { base: base.to_owned(), origin })
    }

    /// The address of a path of plain parts.
    pub(crate) fn url(&self, parts: &[&str]) -> String {
        parts.iter().fold(self.base.clone(), |url, part| url + "/" + part)
    }
}

/// Whose answer an address gets.
///
/// # Errors
/// The address is of no kind that is asked.
pub(crate) fn origin(url: &str) -> Result<Origin, &'static str> {
    if url.len() > ADDRESS_BYTES_MAX {
        return Err("the address is too long");
    }
    let uri: Uri = url.parse().map_err(|_| "this is no address")?;
    Origin::of(&uri).ok_or("this is no http:// or https:// address")
}

/// The absolute address that `location` means in an answer of `url`.
pub(crate) fn resolve(url: &str, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let scheme_end = url.find("://").map_or(0, |at| at + 3);
    let path_start = url[scheme_end..].find('/').map_or(url.len(), |at| scheme_end + at);
    if location.contains("://") && !location.starts_with('/') {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{}{location}", &url[..scheme_end.saturating_sub(2)])
    } else if location.starts_with('/') {
        format!("{}{location}", &url[..path_start])
    } else {
        let path_end = url.find('?').unwrap_or(url.len());
        let folder_end = url[..path_end].rfind('/').filter(|&at| at >= path_start).unwrap_or(path_start);
        format!("{}/{location}", &url[..folder_end])
    }
}

/// `text` with all but plain letters as `%XX`; `slash` stays where it is a path.
fn encode(text: &str, slash: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || (slash && byte == b'/');
        if plain {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// One part of an address: a revision with slashes is one part.
pub(crate) fn part(text: &str) -> String {
    encode(text, false)
}

/// A path of an address.
pub(crate) fn path(text: &str) -> String {
    encode(text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_taken_as_browsers_take_it() {
        let from = "https://hub.example/a/b/c?x=1";
        for (location, target) in [
            ("https://cdn.example/x?y=/", "https://cdn.example/x?y=/"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/api/new?u=http://z", "https://hub.example/api/new?u=http://z"),
            ("d#part", "https://hub.example/a/b/d"),
        ] {
            assert_eq!(resolve(from, location), target);
        }
        assert_eq!(resolve("http://hub.example", "x"), "http://hub.example/x");
    }

    #[test]
    fn the_port_and_the_scheme_are_part_of_who_answers() {
        let hub = origin("https://Hub.example/a").expect("an address");
        assert_eq!(hub, origin("https://hub.example:443/b").expect("an address"));
        for other in [
            "http://hub.example/a",
            "https://hub.example:444",
            "https://hub.example.evil.example",
            "https://a.hub.example",
        ] {
            assert_ne!(hub, origin(other).expect("an address"), "{other}");
        }
        for wrong in ["file:///etc/passwd", "ftp://hub.example", "hub", "", "https://", "https:// x"] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_endpoint_is_an_address_without_a_password() {
        assert_eq!(
            Endpoint::parse("http://127.0.0.1:80/mirror/").expect("an endpoint").url(&["api", "x"]),
            "http://127.0.0.1:80/mirror/api/x"
        );
        for wrong in ["", "hub.example", "https://a:b@hub.example", "https://hub.example?x", "file:///x"] {
            assert!(Endpoint::parse(wrong).is_err_and(|error| error.is_usage()), "{wrong}");
        }
        assert!(origin("http://[::1]:8080/").expect("an address").is_loopback());
        assert!(!origin("http://127.0.0.1.example/").expect("an address").is_loopback());
    }

    #[test]
    fn what_is_not_plain_is_encoded() {
        assert_eq!(part("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(path("a b/ü?#%.gguf"), "a%20b/%C3%BC%3F%23%25.gguf");
    }
}
