//! Runs the fuzz targets of `fuzz/`: they need a nightly toolchain and cargo-fuzz. Their corpora are replayed by an
//! ordinary test of this package as well, which needs neither.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest input that is tried, in bytes; larger ones only slow the search down.
const INPUT_BYTES_MAX: u32 = 4096;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    /// For each target.
    time: Duration,
    /// No target means all.
    targets: Vec<String>,
    /// What was found and reaches new code goes into the corpus that is kept.
    keep: bool,
}

impl Request {
    fn parse(args: &[String]) -> Result<Self> {
        let mut request = Self {
            time: Duration::from_secs(60),
            targets: Vec::new(),
            keep: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--minutes" => {
                    let number = args.next().context("--minutes wants a number")?;
                    request.time = minutes(number).with_context(|| format!("--minutes {number}"))?;
                }
                "--keep" => request.keep = true,
                flag if flag.starts_with('-') => bail!("no such option: {flag}"),
                target => request.targets.push(target.to_owned()),
            }
        }
        Ok(request)
    }
}

/// A number of minutes, whole or not, of a second at least.
fn minutes(number: &str) -> Result<Duration> {
    let time = Duration::try_from_secs_f64(number.parse::<f64>()? * 60.0)?;
    if time < Duration::from_secs(1) {
        bail!("too short");
    }
    Ok(time)
}

/// `cargo xtask fuzz [--minutes N] [--keep] [TARGET...]`
pub(crate) fn run(args: &[String]) -> Result<()> {
    let request = Request::parse(args)?;
    let known = targets()?;
    if let Some(wrong) = request.targets.iter().find(|t| !known.contains(t)) {
        bail!("no target {wrong}; there are {}", known.join(", "));
    }
    let chosen = if request.targets.is_empty() {
        &known
    } else {
        &request.targets
    };
    let mut failed = Vec::new();
    for target in chosen {
        println!("== {target}, {} s", request.time.as_secs());
        if let Err(error) = search(target, &request) {
            println!("{error:#}");
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!(
            "found something in {} (inputs in fuzz/artifacts)",
            failed.join(", ")
        )
    }
}

/// The names of all targets, in order.
fn targets() -> Result<Vec<String>> {
    let folder = crate::root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs")
            && let Some(name) = path.file_stem().and_then(|s| s.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Looks for new inputs from the kept corpus and from what earlier runs on this machine found.
fn search(target: &str, request: &Request) -> Result<()> {
    let root = crate::root();
    let (kept, found) = (
        root.join("fuzz/corpus").join(target),
        root.join("target/fuzz-corpus").join(target),
    );
    std::fs::create_dir_all(&found)?;
    let limits = [
        format!("-max_total_time={}", request.time.as_secs()),
        format!("-max_len={INPUT_BYTES_MAX}"),
        "-timeout=20".to_owned(),
        "-rss_limit_mb=2048".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    fuzzer(target, &[&found, &kept], &limits)?;
    if request.keep {
        fuzzer(target, &[&kept, &found], &["-merge=1".to_owned()])?;
    }
    Ok(())
}

fn fuzzer(target: &str, folders: &[&Path], options: &[String]) -> Result<()> {
    // Through rustup, because this process may itself run under the pinned toolchain.
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz", "run", target]);
    command.args(folders).arg("--").args(options);
    command.current_dir(crate::root());
    for inherited in ["CARGO", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(inherited);
    }
    let status = command.status().context(
        "rustup; cargo-fuzz needs `rustup toolchain install nightly` and `cargo install cargo-fuzz`",
    )?;
    if status.success() {
        Ok(())
    } else {
        bail!("cargo fuzz run {target} ended with {status}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request> {
        Request::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options() {
        let all = parse("").unwrap();
        assert_eq!((all.time.as_secs(), all.targets.len(), all.keep), (60, 0, false));
        let some = parse("--minutes 0.5 wal --keep store").unwrap();
        assert_eq!(some.targets, ["wal", "store"]);
        assert_eq!((some.time.as_secs(), some.keep), (30, true));
        for wrong in [
            "--minutes",
            "--minutes x",
            "--minutes 0",
            "--minutes -1",
            "--minutes NaN",
            "--hours 1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_target_has_a_corpus() {
        let targets = targets().unwrap();
        assert!(targets.contains(&"client".to_owned()), "{targets:?}");
        for target in targets {
            let corpus = crate::root().join("fuzz/corpus").join(&target);
            let entries = std::fs::read_dir(&corpus).map_or(0, Iterator::count);
            assert!(entries > 0, "{} is empty", corpus.display());
        }
    }
}
