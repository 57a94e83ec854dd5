//! Every input that a fuzzer was started from, or once found, goes through its entry function again.

#[path = "../../fuzz/src/lib.rs"]
#[expect(
    unreachable_pub,
    reason = "the fuzzers' own crate, taken in here without its fuzzer"
)]
mod entries;

use std::panic::catch_unwind;
use std::path::Path;

/// All corpora together: they are read by people and cloned by everyone.
const CORPUS_BYTES_MAX: usize = 300_000;

#[test]
fn kept_inputs_do_no_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut bytes = 0;
    let mut bad = Vec::new();
    for (target, entry) in entries::TARGETS {
        let folder = corpus.join(target);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut count = 0;
        for file in files {
            let path = file.expect("a readable folder").path();
            let input = std::fs::read(&path).expect("a readable file");
            count += 1;
            bytes += input.len();
            if catch_unwind(|| entry(&input)).is_err() {
                bad.push(path);
            }
        }
        assert!(count > 0, "{} is empty", folder.display());
    }
    assert!(bad.is_empty(), "these inputs do: {bad:#?}");
    assert!(bytes <= CORPUS_BYTES_MAX, "the corpora have {bytes} bytes");
}
