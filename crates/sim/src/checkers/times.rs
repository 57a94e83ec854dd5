//! The time of a stream's messages never goes back, whoever leads and whatever its clock says (DESIGN section 2, "Time").

use super::few;
use crate::history::History;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    for shown in &history.times {
        for ((before, earlier), (seq, time)) in shown.times.iter().zip(shown.times.iter().skip(1)) {
            if time < earlier {
                found.push(format!(
                    "time goes back in {} on node {}: {before} is of {earlier}, {seq} of {time}",
                    shown.stream, shown.node
                ));
            }
        }
    }
    few(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Times;

    #[test]
    fn time_that_goes_back_is_found() {
        let shown = |times: [&str; 3]| Times {
            stream: "EV",
            node: 0,
            times: (1..).zip(times.map(str::to_owned)).collect(),
        };
        let mut history = History::default();
        history.times = vec![shown(["1", "1", "2"])];
        assert_eq!(check(&history).len(), 0);
        history.times = vec![shown(["1", "3", "2"])];
        assert_eq!(check(&history).len(), 1);
    }
}
