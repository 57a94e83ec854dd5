use super::*;

#[derive(Serialize)]
struct Sample {
    text: &'static str,
    number: f64,
}

fn rendered<T: Serialize>(value: &T) -> String {
    String::from_utf8(to_json(value)).unwrap()
}

#[test]
fn strings_are_escaped_as_in_go() {
    assert_eq!(rendered(&"s1.>"), r#""s1.\u003e""#);
    assert_eq!(
        rendered(&"a<b>&c\u{2028}\u{2029}"),
        r#""a\u003cb\u003e\u0026c\u2028\u2029""#
    );
    assert_eq!(rendered(&"\"\\\n\r\t\x08\x0c\x01é"), r#""\"\\\n\r\t\b\f\u0001é""#);
}

#[test]
fn floats_are_as_short_as_in_go() {
    let text = |number: f64| rendered(&number);
    assert_eq!(text(0.0), "0");
    assert_eq!(text(2.0), "2");
    assert_eq!(text(0.467_871_485_943_775_1), "0.4678714859437751");
    assert_eq!(text(1e20), "100000000000000000000");
    assert_eq!(text(1e21), "1e+21");
    assert_eq!(text(1e-7), "1e-7");
    assert_eq!(text(-1.5), "-1.5");
}

#[test]
fn the_monitoring_form_is_indented_by_two() {
    let sample = Sample {
        text: "<",
        number: 1.0,
    };
    assert_eq!(
        String::from_utf8(to_json_pretty(&sample)).unwrap(),
        "{\n  \"text\": \"\\u003c\",\n  \"number\": 1\n}"
    );
}
