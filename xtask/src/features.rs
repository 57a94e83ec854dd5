//! Checks of `docs/COMPATIBILITY.md`: every row has a state that exists, and the test that it names is there.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = "docs/COMPATIBILITY.md";
const STATES: &[&str] = &["works", "partly", "not yet"];
/// Stands where there is no test yet.
const NONE: &str = "–";

/// Appends what is wrong with the page.
pub(crate) fn check(root: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let mut files = BTreeMap::new();
    for (number, line) in page.lines().enumerate() {
        let Some(row) = Row::of(line) else { continue };
        if let Some(what) = row.fault(|path| source(root, &mut files, path)) {
            wrong.push(format!("{PAGE}:{}: {what}", number + 1));
        }
    }
    Ok(())
}

/// The text of a file, empty if there is none.
fn source(root: &Path, files: &mut BTreeMap<String, String>, path: &str) -> String {
    let read = || std::fs::read_to_string(root.join(path)).unwrap_or_default();
    files.entry(path.to_owned()).or_insert_with(read).clone()
}

struct Row<'a> {
    state: &'a str,
    test: &'a str,
}

impl<'a> Row<'a> {
    /// A row of a table of features, and nothing else: not its head, not the line below that.
    fn of(line: &'a str) -> Option<Self> {
        let cells = line.strip_prefix('|')?.strip_suffix('|')?;
        let mut cells = cells.split('|').map(str::trim);
        let (_, state, test, _) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
        (state != "state" && !state.starts_with('-')).then_some(Self { state, test })
    }

    fn fault(&self, source: impl FnOnce(&str) -> String) -> Option<String> {
        if !STATES.contains(&self.state) {
            return Some(format!("no such state: {:?}", self.state));
        }
        if self.test == NONE {
            return (self.state == "works").then(|| "says that it works and names no test".to_owned());
        }
        let name = self
            .test
            .strip_prefix('`')
            .and_then(|test| test.strip_suffix('`'));
        let Some(name) = name else {
            return Some(format!("not a test: {:?}", self.test));
        };
        let there = match name.split_once("::") {
            Some((file, test)) => source(&format!("crates/{file}")).contains(&format!("fn {test}(")),
            None => !source(name).is_empty(),
        };
        (!there).then(|| format!("there is no {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> Option<String> {
        let files = |path: &str| match path {
            "crates/a/src/b.rs" => "#[test]\n    fn it_does() {}".to_owned(),
            "conformance/s1.py" => "x".to_owned(),
            _ => String::new(),
        };
        Row::of(line)?.fault(files)
    }

    #[test]
    fn rows() {
        for fine in [
            "| feature | state | test | remark |",
            "|---|---|---|---|",
            "text",
            "| x | works | `a/src/b.rs::it_does` | |",
            "| x | partly | `conformance/s1.py` | so |",
            "| x | not yet | – | |",
        ] {
            assert_eq!(fault(fine), None, "{fine}");
        }
        for bad in [
            "| x | fine | – | |",
            "| x | works | – | |",
            "| x | works | b | |",
            "| x | works | `a/src/b.rs::it_did` | |",
            "| x | works | `a/src/c.rs::it_does` | |",
            "| x | partly | `conformance/s3.py` | |",
        ] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }
}
