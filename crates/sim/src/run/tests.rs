use super::*;

fn plan(seed: u64, seconds: u64, workload: Workload) -> Plan {
    Plan {
        seed,
        seconds,
        workload,
        trace: None,
    }
}

fn passes(report: &Report) {
    assert!(
        report.violations.is_empty(),
        "seed {}: {:#?}",
        report.seed,
        report.violations
    );
}

#[test]
fn a_seed_decides_everything() {
    let runs: Vec<Report> = [1, 1, 2].map(|seed| run(plan(seed, 5, Workload::Core))).into();
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].trace_hash, runs[2].trace_hash);
    runs.iter().for_each(passes);
    assert!(runs[0].counts["core messages"] > 100, "{:?}", runs[0].counts);
}

#[test]
fn promises_hold_while_everything_breaks_and_after() {
    for seed in 1..4 {
        let report = run(plan(seed, 6, Workload::All));
        passes(&report);
        for what in ["acks", "writes", "confirmed acknowledgements", "faults"] {
            assert!(
                report.counts.get(what).is_some_and(|n| *n > 0),
                "{what}: {:?}",
                report.counts
            );
        }
    }
}
