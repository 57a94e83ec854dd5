//! Thin ways to the programs that live elsewhere in the repository, so that one command knows them all.

use crate::shell;
use anyhow::{Context, Result, bail};

/// The binary that benchmarks and conformance programs run unless another is named.
const RELEASE_BINARY: &str = "target/release/tidelock";

/// `cargo xtask sim ...`: the cluster simulator, built with optimisation; its own `--help` says the rest.
pub(crate) fn sim(args: &[String]) -> Result<()> {
    let mut all = vec![
        "run",
        "--quiet",
        "--profile",
        "quick",
        "-p",
        "tidelock-sim",
        "--bin",
        "sim",
        "--",
    ];
    all.extend(args.iter().map(String::as_str));
    shell("cargo", &all)
}

/// `cargo xtask fuzz-replay`: the kept corpora through their entry functions, on the pinned toolchain.
pub(crate) fn fuzz_replay() -> Result<()> {
    shell("cargo", &["test", "-p", "xtask", "--test", "fuzz_replay"])
}

/// `cargo xtask bench ...`: `bench/perf.py` with these arguments; without `--server`, of the release build.
pub(crate) fn bench(args: &[String]) -> Result<()> {
    let own = format!("tidelock={RELEASE_BINARY}");
    let mut all = vec!["bench/perf.py"];
    if !args.iter().any(|a| a == "--server" || a.starts_with("--server=")) {
        build_release()?;
        all.extend(["--server", own.as_str()]);
    }
    all.extend(args.iter().map(String::as_str));
    shell("python3", &all)
}

/// `cargo xtask conformance [--long] [--binary PATH]`: the conformance programs and the clients' own suites.
pub(crate) fn conformance(args: &[String]) -> Result<()> {
    let (long, binary) = conformance_args(args)?;
    if binary == RELEASE_BINARY {
        build_release()?;
    }
    shell("bash", &["conformance/setup.sh"])?;
    let mut programs = vec!["conformance/run.sh", "--binary", binary];
    let mut suites = vec!["conformance/suites.sh", "--binary", binary];
    if !long {
        programs.push("--short");
        suites.push("--short");
    }
    // Both run in any case: what one finds does not make the other needless.
    let programs = shell("bash", &programs);
    shell("bash", &suites)?;
    programs
}

fn conformance_args(args: &[String]) -> Result<(bool, &str)> {
    let (mut long, mut binary) = (false, RELEASE_BINARY);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--long" => long = true,
            "--binary" => binary = args.next().context("--binary wants a path")?,
            wrong => bail!("no such option: {wrong}"),
        }
    }
    Ok((long, binary))
}

fn build_release() -> Result<()> {
    shell("cargo", &["build", "--release", "--locked", "-p", "tidelock"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_options() {
        let args = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(conformance_args(&[]).unwrap(), (false, RELEASE_BINARY));
        assert_eq!(conformance_args(&args("--binary x --long")).unwrap(), (true, "x"));
        assert!(conformance_args(&args("--binary")).is_err());
        assert!(conformance_args(&args("--short")).is_err());
    }
}
