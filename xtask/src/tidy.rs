//! Checks of the workspace's shape that no compiler makes.
//!
//! - a crate depends on crates of lower layers only (`[package.metadata.tidelock] layer`), or of its own layer from 1
//!   to 3 where no cycle is possible anyway because cargo refuses it;
//! - only `server` (and the binary) name mio, tokio, axum, socket2, signal-hook; only `replica` names raft;
//! - licences of all dependencies are on the list of `deny.toml`;
//! - no source file is longer than 1,000 lines; generated files are what their data gives;
//! - the tests that the table of features names are there.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const LINES_MAX: usize = 1000;
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "BSL-1.0",
    "Unlicense",
    "CC0-1.0",
];
/// Libraries of the shell: nothing pure may name them.
const SHELL_ONLY: &[&str] = &[
    "mio",
    "tokio",
    "axum",
    "hyper",
    "socket2",
    "signal-hook",
    "tempfile",
];

pub(crate) fn run() -> Result<()> {
    let mut wrong = Vec::new();
    let metadata = metadata()?;
    layers(&metadata, &mut wrong)?;
    licences(&metadata, &mut wrong)?;
    lengths(&crate::root(), &mut wrong)?;
    crate::features::check(&crate::root(), &mut wrong)?;
    if let Err(e) = crate::codegen::run(true) {
        wrong.push(e.to_string());
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        bail!("\n  {}", wrong.join("\n  "))
    }
}

fn metadata() -> Result<Value> {
    let out = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(crate::root())
        .output()?;
    if !out.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata
        .pointer("/packages")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn layers(metadata: &Value, wrong: &mut Vec<String>) -> Result<()> {
    let mut layer_of = BTreeMap::new();
    let ours: Vec<&Value> = packages(metadata)
        .filter(|p| p.get("source").is_some_and(Value::is_null))
        .collect();
    for package in &ours {
        let layer = package
            .pointer("/metadata/tidelock/layer")
            .and_then(Value::as_u64);
        let layer = layer.with_context(|| format!("{} states no layer", text(package, "name")))?;
        layer_of.insert(text(package, "name"), layer);
    }
    for package in &ours {
        let name = text(package, "name");
        let mine = layer_of.get(name).copied().unwrap_or_default();
        let dependencies = package
            .get("dependencies")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        for dependency in dependencies {
            let other = text(dependency, "name");
            let for_tests = dependency.get("kind").and_then(Value::as_str) == Some("dev");
            match layer_of.get(other) {
                Some(&theirs) if theirs > mine || (theirs == mine && mine >= 4) => {
                    wrong.push(format!(
                        "{name} (layer {mine}) depends on {other} (layer {theirs})"
                    ));
                }
                Some(_) => {}
                None if for_tests => {}
                None if mine <= 5 && SHELL_ONLY.contains(&other) && name != "tidelock-server" => {
                    wrong.push(format!(
                        "{name} must not name {other}: that belongs to tidelock-server"
                    ));
                }
                None if other == "raft" && name != "tidelock-replica" => {
                    wrong.push(format!(
                        "{name} must not name raft: that belongs to tidelock-replica"
                    ));
                }
                None => {}
            }
        }
    }
    Ok(())
}

fn licences(metadata: &Value, wrong: &mut Vec<String>) -> Result<()> {
    for package in packages(metadata) {
        let licence = text(package, "license");
        if !allowed(licence) {
            wrong.push(format!("{} has the licence {licence:?}", text(package, "name")));
        }
    }
    Ok(())
}

/// Whether an SPDX expression can be met by the list: every `AND` part has an `OR` part on it.
fn allowed(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    flat.split(" AND ").all(|part| {
        part.split(" OR ")
            .any(|one| LICENCES.contains(&one.trim()) || one.trim().starts_with("Apache-2.0 WITH"))
    })
}

fn lengths(root: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let out = Command::new("git")
        .args(["ls-files", "*.rs", "*.py", "*.sh"])
        .current_dir(root)
        .output()?;
    for file in String::from_utf8_lossy(&out.stdout).lines() {
        if file.ends_with("api_error_table.rs") {
            continue;
        }
        let lines = std::fs::read_to_string(root.join(file)).map_or(0, |text| text.lines().count());
        if lines > LINES_MAX {
            wrong.push(format!("{file} has {lines} lines; split it at {LINES_MAX}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn licence_expressions() {
        assert!(allowed("MIT OR Apache-2.0"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!allowed("MPL-2.0"));
        assert!(!allowed("MIT AND GPL-3.0"));
        assert!(!allowed(""));
    }
}
