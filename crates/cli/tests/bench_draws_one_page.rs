//! `bench --html` writes one page that needs nothing else, shows every configuration, and replaces only its own kind.
//!
//! What could go wrong: a style, font or script from elsewhere, text of the user that becomes markup, a configuration that is
//! left out, hours of measuring before the page's place is refused.

use std::fs;
use std::path::Path;

use crate::common::{about_demo, stderr, stdout};

const SIZES: &str = "--prompt-tokens 24 --gen-tokens 6 --repeat 2";

fn bench(options: &str, page: &Path) -> std::process::Output {
    let page = page.to_str().expect("a UTF-8 path");
    let options: Vec<&str> = SIZES.split(' ').chain(options.split(' ')).chain(["--html", page]).collect();
    about_demo("bench", &options)
}

#[test]
fn every_configuration_is_on_a_page_that_stands_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a <b> & \"c\".html");
    let output = bench("--budget 100MiB,38MiB,unlimited --residency auto,streamed --depths 0,32", &path);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("of limit"), "the tables are printed all the same");
    let page = fs::read_to_string(&path).expect("a page");
    let without_namespaces = page.replace("http://www.w3.org/2000/svg", "");
    for foreign in ["http:", "https:", "url(", "@import", "<script", "<link", "<img", "src=", "href="] {
        assert!(!without_namespaces.contains(foreign), "{foreign} in the page");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.ends_with("</html>\n"));
    assert!(!page.contains("<b> &") && page.contains("&lt;b&gt; &amp;"), "the command is text");
    assert!(!page.contains("NaN") && !page.contains("inf\""), "every number is one");
    for budget in ["100.0 MiB", "38.0 MiB", "unlimited"] {
        for depth in [0, 32] {
            for residency in ["auto: ", "streamed"] {
                let bars = page
                    .lines()
                    .filter(|line| {
                        line.contains("text-anchor=\"end\"")
                            && line.contains(&format!("{budget} · {residency}"))
                    })
                    .filter(|line| line.contains(&format!("· depth {depth}<")));
                assert_eq!(bars.count(), 1, "bars of {budget}, {residency}, {depth}");
            }
        }
    }
    assert_eq!(page.matches("<tr class=\"head\">").count(), 6);
    // The cold run has rows of its own at the first depth; warm ones at both.
    assert_eq!(page.matches("<td class=\"name\">decode</td>").count(), 6 * 3);
    for picture in [
        "Decode by budget",
        "Prefill by budget",
        "Hit rate of decode by budget",
        "Read per generated token by budget",
        "Phases of a generated token",
        "Uses of experts by layer",
        "Timeline of one token",
    ] {
        assert_eq!(page.matches(&format!("aria-label=\"{picture}\"")).count(), 1, "{picture}");
    }
    timeline_fills_its_token(&page);
    for element in ["svg", "g", "desc", "div", "table", "tr", "p", "main", "title"] {
        let opened =
            page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
    }
}

/// The processor's lane has no holes, and the reads are those of the smallest budget, which the text names.
fn timeline_fills_its_token(page: &str) {
    let (_, after) = page.split_once("<h2>One token over time</h2>").expect("a timeline");
    let (caption, after) = after.split_once("</p>").expect("a caption");
    assert!(caption.contains("38.0 MiB") && caption.contains("experts had to be read"), "{caption}");
    let (drawing, _) = after.split_once("</svg>").expect("a drawing");
    assert!(drawing.contains("<desc>In "), "a sentence for those who do not see it");
    let number = |line: &str, name: &str| -> f64 {
        let (_, rest) = line.split_once(&format!(" {name}=\"")).expect("the attribute");
        rest.split_once('"').expect("its end").0.parse().expect("a number")
    };
    let work = drawing.lines().filter(|line| line.starts_with("<rect class=\"work\""));
    let spans: Vec<(f64, f64)> = work.map(|line| (number(line, "x"), number(line, "width"))).collect();
    assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 0.02), "no overlap: {spans:?}");
    let drawn: f64 = spans.iter().map(|(_, width)| width).sum();
    let (first, last) = (spans[0], spans[spans.len() - 1]);
    let whole = last.0 + last.1 - first.0;
    assert!(drawn >= 0.99 * whole && whole > 900.0, "{drawn} of {whole}");
    assert!(drawing.matches("<title>expert ").count() > 0, "reads are drawn");
    assert!(drawing.matches("class=\"layer\"").count() > 1, "layers are marked");
}

#[test]
fn a_model_in_memory_has_no_timeline() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html");
    let output = bench("--budget unlimited --residency resident", &path);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = fs::read_to_string(&path).expect("a page");
    assert!(!page.contains("One token over time") && page.contains("Uses of experts"));
}

#[test]
fn a_page_replaces_only_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes.html");
    fs::write(&notes, "<!DOCTYPE html>\n<p>mine</p>").expect("a file");
    for (place, reason) in [
        (notes.as_path(), "not overwritten"),
        (folder.path(), "not overwritten"),
        (Path::new("/dev/null"), "not overwritten"),
        (&folder.path().join("nowhere/page.html"), "folder does not exist"),
    ] {
        // A budget that cannot work is refused by the plan: the page's place must be refused before that.
        let output = bench("--budget 9MiB", place);
        assert!(!output.status.success(), "{} was accepted", place.display());
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    assert_eq!(fs::read_to_string(&notes).expect("the notes"), "<!DOCTYPE html>\n<p>mine</p>");
    let page = folder.path().join("page.html");
    for options in ["--threads 1", "--threads 2"] {
        let output = bench(options, &page);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(fs::read_to_string(&page).expect("a page").contains(options), "the page is the last bench's");
    }
}
