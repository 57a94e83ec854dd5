//! Runs seeds and reports what breaks: `sim [--seed X | --seeds N [--from X]] [--seconds S] [--workload W] [--trace]`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks on standard output"
)]

use anyhow::{Context, Result, bail};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use tidelock_sim::{Plan, Report, Workload, run};

mod log;

/// What the command line asks for.
struct Args {
    from: u64,
    seeds: u64,
    seconds: u64,
    workload: Workload,
    trace: bool,
    twice: bool,
}

fn main() -> ExitCode {
    match args(std::env::args().skip(1)).map(|args| run_all(&args)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error:#}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "\
usage: sim [--seeds N] [--from X] [--seed X] [--seconds S] [--workload core|streams|full|all] [--twice] [--trace]
  --seeds N     run N seeds (10)
  --from X      the first of them (1)
  --seed X      run this one only
  --seconds S   virtual seconds during which things break (20)
  --workload W  what the cluster is used for (all)
  --twice       run each seed twice and compare the traces
  --trace       print what happens, and the servers' logs, to standard error";

fn args(mut words: impl Iterator<Item = String>) -> Result<Args> {
    let mut args = Args {
        from: 1,
        seeds: 10,
        seconds: 20,
        workload: Workload::All,
        trace: false,
        twice: false,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--seeds" => args.seeds = value()?.parse()?,
            "--from" => args.from = value()?.parse()?,
            "--seed" => (args.from, args.seeds) = (value()?.parse()?, 1),
            "--seconds" => args.seconds = value()?.parse()?,
            "--workload" => {
                args.workload = match value()?.as_str() {
                    "core" => Workload::Core,
                    "streams" => Workload::Streams,
                    "full" => Workload::Full,
                    "all" => Workload::All,
                    other => bail!("no workload {other:?}"),
                }
            }
            "--twice" => args.twice = true,
            "--trace" => args.trace = true,
            other => bail!("unknown argument {other:?}"),
        }
    }
    Ok(args)
}

/// Runs all seeds; answers how many failed.
fn run_all(args: &Args) -> u64 {
    log::start(args.trace);
    let mut failed = 0;
    for seed in args.from..args.from.saturating_add(args.seeds) {
        let result = run_one(args, seed);
        let again = args.twice.then(|| run_one(args, seed));
        match (result, again) {
            (Ok(one), Some(Ok(other))) if one != other => {
                failed += 1;
                println!("seed {seed}: FAILED: two runs differ: {one:?} {other:?}");
            }
            (Ok(report), _) => {
                failed += u64::from(!report.violations.is_empty());
                print(&report);
            }
            (Err(text), _) => {
                failed += 1;
                println!("seed {seed}: FAILED: panic: {text}");
            }
        }
    }
    println!("{} seeds, {failed} failed", args.seeds);
    failed
}

fn run_one(args: &Args, seed: u64) -> Result<Report, String> {
    let trace = args
        .trace
        .then(|| Box::new(std::io::stderr()) as Box<dyn std::io::Write>);
    let plan = Plan {
        seed,
        seconds: args.seconds,
        workload: args.workload,
        trace,
    };
    catch_unwind(AssertUnwindSafe(|| run(plan))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("?")
            .to_owned()
    })
}

fn print(report: &Report) {
    let counts: Vec<String> = report
        .counts
        .iter()
        .map(|(what, n)| format!("{n} {what}"))
        .collect();
    let verdict = if report.violations.is_empty() {
        "ok"
    } else {
        "FAILED"
    };
    println!(
        "seed {}: {verdict}: trace {:016x}, {} events in {:.1} virtual s; {}",
        report.seed,
        report.trace_hash,
        report.events,
        report.virtual_time.as_secs_f64(),
        counts.join(", ")
    );
    for violation in &report.violations {
        println!("  {violation}");
    }
}
