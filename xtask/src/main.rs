//! Development tasks: `cargo xtask <task>`. See `usage` below, or run it without arguments.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks on standard output"
)]

mod codegen;
mod features;
mod fuzz;
mod mutants;
mod programs;
mod tidy;

use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let task = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    match run(&task, &rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &str, rest: &[String]) -> Result<()> {
    match task {
        "tidy" => tidy::run(),
        "codegen" => codegen::run(rest.iter().any(|a| a == "--check")),
        "ci" => shell("bash", &[".ci/run"]),
        "sim" => programs::sim(rest),
        "mutants" => mutants::run(rest),
        "fuzz" => fuzz::run(rest),
        "fuzz-replay" => programs::fuzz_replay(),
        "bench" => programs::bench(rest),
        "conformance" => programs::conformance(rest),
        _ => {
            println!("{}", USAGE.trim());
            if task.is_empty() {
                Ok(())
            } else {
                bail!("no such task")
            }
        }
    }
}

const USAGE: &str = "
cargo xtask tidy                      layers, banned names, licences, lengths, generated files, table of features
cargo xtask codegen [--check]         writes (or checks) what is generated from data files
cargo xtask ci                        what CI runs
cargo xtask sim [--seeds N] [...]     simulated clusters under faults, each run from one seed (sim --help says more)
cargo xtask mutants [--seeds N] [NAME...]
                                      whether the simulator finds each deliberate fault of crates/sim/mutants
cargo xtask fuzz [--minutes N] [--keep] [TARGET...]
                                      looks for new inputs, N minutes a target (1); needs nightly and cargo-fuzz;
                                      --keep adds those that reach new code to fuzz/corpus
cargo xtask fuzz-replay               feeds fuzz/corpus to the parsers, on the pinned toolchain
cargo xtask bench [...]               bench/perf.py; without --server, of the release build (bench/README.md)
cargo xtask conformance [--long] [--binary PATH]
                                      the conformance programs and the clients' own suites (conformance/README.md)
";

/// The workspace's root folder.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

fn shell(program: &str, args: &[&str]) -> Result<()> {
    let status = Command::new(program).args(args).current_dir(root()).status()?;
    if status.success() {
        Ok(())
    } else {
        bail!("{program} {} ended with {status}", args.join(" "))
    }
}
