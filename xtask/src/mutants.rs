//! `cargo xtask mutants`: whether the simulator finds the deliberate faults of `crates/sim/mutants`.
//!
//! Each is a patch of the product. It is applied to a copy of the working tree below the target folder, never to the tree
//! itself; the copy and what is built from it are kept, so that a mutant costs what it changes. Then seeds are run until
//! one fails. Only what the simulator itself reports as a failed seed counts.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Where the patches are. Those in `open` are known not to be caught, and are run only by name.
const FOLDER: &str = "crates/sim/mutants";
/// Faults of the server's use of files, for `conformance/a11.py` and `a12.py`.
#[cfg(test)]
const BY_HAND: &str = "conformance/unsync/mutants";
const OPEN: &str = "open";
/// Seeds that are run unless the command line says otherwise.
const SEEDS: u64 = 300;
/// Seeds that one process runs; so much of its memory at most adds up.
const BATCH: u64 = 20;
/// A seed that takes longer hangs.
const SEED_MAX: Duration = Duration::from_secs(300);
/// Characters of a report that are shown.
const REPORT_CHARS_MAX: usize = 160;
/// Lines of a build's errors that are shown.
const ERROR_LINES_MAX: usize = 40;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    seeds: u64,
    /// No name means all but those in `open`.
    names: Vec<String>,
}

impl Request {
    fn parse(args: &[String]) -> Result<Self> {
        let mut request = Self {
            seeds: SEEDS,
            names: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seeds" => {
                    let number = args.next().context("--seeds wants a number")?;
                    request.seeds = number.parse().with_context(|| format!("--seeds {number}"))?;
                    ensure!(request.seeds > 0, "--seeds 0");
                }
                flag if flag.starts_with('-') => bail!("no such option: {flag}"),
                name => request.names.push(name.to_owned()),
            }
        }
        Ok(request)
    }
}

/// A deliberate fault.
#[derive(Debug)]
struct Mutant {
    name: String,
    patch: PathBuf,
    is_open: bool,
}

/// How a mutant has fared.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// By the seed that came as number so-and-so, which reports this.
    Caught(u64, String),
    NotCaught,
}

/// `cargo xtask mutants [--seeds N] [NAME...]`
pub(crate) fn run(args: &[String]) -> Result<()> {
    let request = Request::parse(args)?;
    let all = mutants()?;
    if let Some(wrong) = request
        .names
        .iter()
        .find(|name| all.iter().all(|m| m.name != **name))
    {
        bail!("no mutant {wrong} in {FOLDER}");
    }
    let is_chosen = |mutant: &&Mutant| match request.names.is_empty() {
        true => !mutant.is_open,
        false => request.names.contains(&mutant.name),
    };
    let scratch = Scratch::new()?;
    let mut failed = Vec::new();
    for mutant in all.iter().filter(is_chosen) {
        let line = match scratch.try_out(mutant, request.seeds) {
            Ok(Verdict::Caught(seeds, report)) => format!("{seeds:>4}  {report}"),
            Ok(Verdict::NotCaught) => {
                failed.push(mutant.name.as_str());
                format!("NOT CAUGHT in {} seeds", request.seeds)
            }
            Err(error) => {
                failed.push(mutant.name.as_str());
                format!("ERROR: {error:#}")
            }
        };
        println!("{:<34} {line}", mutant.name);
    }
    ensure!(failed.is_empty(), "not caught: {}", failed.join(", "));
    Ok(())
}

/// All mutants, by name.
fn mutants() -> Result<Vec<Mutant>> {
    let folder = crate::root().join(FOLDER);
    let mut all = mutants_in(&folder.join(OPEN), true)?;
    all.extend(mutants_in(&folder, false)?);
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// The mutants of a folder, if it is there.
fn mutants_in(folder: &Path, is_open: bool) -> Result<Vec<Mutant>> {
    let mut all = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(all);
    };
    for entry in entries {
        let patch = entry?.path();
        if patch.extension().is_some_and(|ending| ending == "patch")
            && let Some(name) = patch.file_stem().and_then(|stem| stem.to_str())
        {
            let name = name.to_owned();
            all.push(Mutant { name, patch, is_open });
        }
    }
    Ok(all)
}

/// The copy of the working tree, and what is built from it.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

impl Scratch {
    fn new() -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
        let folder = crate::root().join(target).join("mutants");
        let tree = folder.join("tree");
        fs::create_dir_all(&tree).with_context(|| tree.display().to_string())?;
        let target = folder.join("target");
        Ok(Self { tree, target })
    }

    fn try_out(&self, mutant: &Mutant, seeds: u64) -> Result<Verdict> {
        self.restore()?;
        apply(&self.tree, &mutant.patch, &[])?;
        self.build()?;
        let sim = self.target.join("quick/sim");
        let mut from = 1;
        while from <= seeds {
            let count = BATCH.min(seeds - from + 1);
            if let Some(report) = run_seeds(&sim, from, count)? {
                return Ok(report);
            }
            from += count;
        }
        Ok(Verdict::NotCaught)
    }

    /// Makes the copy like the working tree. Files that are alike are not touched, or they would be built again.
    fn restore(&self) -> Result<()> {
        let root = crate::root();
        let wanted = files_of(&root)?;
        for file in &wanted {
            let bytes = fs::read(root.join(file)).with_context(|| file.display().to_string())?;
            let copy = self.tree.join(file);
            if fs::read(&copy).is_ok_and(|there| there == bytes) {
                continue;
            }
            if let Some(folder) = copy.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&copy, bytes).with_context(|| copy.display().to_string())?;
        }
        let mut there = Vec::new();
        list(&self.tree, &mut there)?;
        for path in there {
            let is_wanted = path
                .strip_prefix(&self.tree)
                .is_ok_and(|file| wanted.contains(file));
            if !is_wanted {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn build(&self) -> Result<()> {
        let mut command = Command::new("cargo");
        command.args([
            "build",
            "--quiet",
            "--locked",
            "--profile",
            "quick",
            "-p",
            "tidelock-sim",
            "--bin",
            "sim",
        ]);
        command
            .arg("--target-dir")
            .arg(&self.target)
            .current_dir(&self.tree);
        command.env("CARGO_INCREMENTAL", "1");
        let output = command.output().context("cargo")?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.starts_with("error"))
            .collect();
        let shown = errors
            .get(..ERROR_LINES_MAX.min(errors.len()))
            .unwrap_or_default();
        bail!("the patch does not build:\n{}", shown.join("\n"))
    }
}

/// The files of a working tree that belong to it, tracked or not.
fn files_of(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut command = Command::new("git");
    command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = command.current_dir(root).output().context("git")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = String::from_utf8(output.stdout)?;
    let files = names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from);
    // What was deleted and not committed is listed, too.
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

/// All files below a folder.
fn list(folder: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), out)?;
        } else {
            out.push(entry.path());
        }
    }
    Ok(())
}

/// Applies a patch to a tree, which is taken for what it is, even if it lies in a folder that a repository ignores.
fn apply(tree: &Path, patch: &Path, options: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.arg("apply").args(options).arg(patch).current_dir(tree);
    if let Some(above) = tree.parent() {
        command.env("GIT_CEILING_DIRECTORIES", above);
    }
    let output = command.output().context("git")?;
    if output.status.success() {
        Ok(())
    } else {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("the patch does not apply: {}", text.trim().replace('\n', "; "))
    }
}

/// A process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs seeds until one fails; `None` if none does.
fn run_seeds(sim: &Path, from: u64, count: u64) -> Result<Option<Verdict>> {
    let mut command = Command::new(sim);
    command.args([
        "--workload",
        "all",
        "--from",
        &from.to_string(),
        "--seeds",
        &count.to_string(),
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process(command.spawn().with_context(|| sim.display().to_string())?);
    let output = process.0.stdout.take().context("it has an output")?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let verdict = read_report(&lines, from, count);
    drop(process);
    verdict
}

/// Reads what the simulator says.
fn read_report(lines: &Receiver<String>, from: u64, count: u64) -> Result<Option<Verdict>> {
    let mut done = from - 1;
    loop {
        match lines.recv_timeout(SEED_MAX) {
            Ok(line) => {
                let Some((seed, rest)) = seed_line(&line) else {
                    continue;
                };
                done = seed;
                let Some(inline) = rest.strip_prefix("FAILED: ") else {
                    continue;
                };
                // What broke comes in the next line, but for a panic.
                let report = match inline.starts_with("panic") {
                    true => inline.to_owned(),
                    false => lines.recv_timeout(SEED_MAX).unwrap_or_default(),
                };
                return Ok(Some(Verdict::Caught(seed, short(&report))));
            }
            Err(RecvTimeoutError::Disconnected) if done + 1 == from + count => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the simulator ended in seed {}", done + 1),
            Err(RecvTimeoutError::Timeout) => bail!("seed {} hangs", done + 1),
        }
    }
}

/// The number of a seed, and what is said of it.
fn seed_line(line: &str) -> Option<(u64, &str)> {
    let (number, rest) = line.strip_prefix("seed ")?.split_once(": ")?;
    Some((number.parse().ok()?, rest))
}

fn short(report: &str) -> String {
    let report = report.trim();
    match report.char_indices().nth(REPORT_CHARS_MAX) {
        Some((at, _)) => format!("{} ...", report.get(..at).unwrap_or_default()),
        None => report.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let parse = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Request::parse(&args)
        };
        assert_eq!(parse("").unwrap().seeds, SEEDS);
        let some = parse("a --seeds 7 b").unwrap();
        assert_eq!(
            (some.seeds, some.names),
            (7, vec!["a".to_owned(), "b".to_owned()])
        );
        for wrong in ["--seeds", "--seeds x", "--seeds 0", "--all"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    /// When the product moves on, its faults move along.
    #[test]
    fn every_patch_applies_and_says_what_it_is() {
        let mut all = mutants().unwrap();
        assert!(all.len() >= 25, "{}", all.len());
        // Those that are tried by hand, with servers that lose power.
        let by_hand = mutants_in(&crate::root().join(BY_HAND), true).unwrap();
        assert!(!by_hand.is_empty());
        all.extend(by_hand);
        for Mutant { name, patch, .. } in &all {
            if let Err(error) = apply(&crate::root(), patch, &["--check"]) {
                panic!("{name}: {error:#}");
            }
            let text = fs::read_to_string(patch).unwrap();
            let head = text.split("diff --git ").next().unwrap_or_default();
            assert!(
                head.split_whitespace().count() >= 20,
                "{name} does not say what is broken"
            );
        }
        let names: BTreeSet<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), all.len(), "each name is there once");
    }

    #[test]
    fn the_first_seed_that_fails_counts() {
        let read = |text: &[&str], count| {
            let (sender, lines) = channel();
            for line in text {
                sender.send((*line).to_owned()).unwrap();
            }
            drop(sender);
            read_report(&lines, 21, count)
        };
        let ok = "seed 21: ok: trace 0, 5 events";
        assert_eq!(read(&[ok, "1 seeds, 0 failed"], 1).unwrap(), None);
        let caught = |seed, text: &str| Some(Verdict::Caught(seed, text.to_owned()));
        let failed = [ok, "seed 22: FAILED: trace 0", "  this", "  that"];
        assert_eq!(read(&failed, 3).unwrap(), caught(22, "this"));
        assert_eq!(
            read(&["seed 21: FAILED: panic: x"], 3).unwrap(),
            caught(21, "panic: x")
        );
        assert!(read(&[ok], 2).is_err(), "it ended before its end");
    }
}
