use super::*;

/// 2026-11-30, 23:59:59.999 UTC, the last moment of a month.
const MONTH_END: Millis = 1_796_083_199_999;

fn cap(of: CapSubject, per: CapPeriod) -> Cap {
    let name = Box::from(of.as_ref());
    let origin = CapOrigin::Configuration;
    Cap { name, origin, of, only: None, per, dollars: Some(10.0), tokens: None }
}

fn spender(session: &str) -> Spender {
    Spender {
        tenant: "t".into(),
        session: session.into(),
        project: Some("#1".into()),
        tags: vec!["team=core".into(), "env=ci".into()],
        upstream: "anthropic".into(),
    }
}

fn dollars(dollars: f64) -> Spending {
    Spending { dollars, tokens: 1_000 }
}

/// Lifts a cap of these.
fn lift(sums: &mut CapSums, name: &str, subject: Option<&str>) -> Result<(), UnknownCap> {
    let mut changes = CapChanges::default();
    changes.lift(&sums.lift(name, subject, MONTH_END)?);
    let caps = sums.caps.clone();
    assert_eq!(sums.change_caps(&caps, &changes), [], "their sums go on");
    Ok(())
}

#[track_caller]
fn used(sums: &CapSums, spender: &Spender, now: Millis) -> f64 {
    sums.fullest(spender, now).expect("a cap").used
}

#[test]
fn each_subject_has_sum_of_its_own() {
    let mut sums = CapSums::new(vec![cap(CapSubject::Session, CapPeriod::Session)]);
    sums.add(&spender("a"), dollars(5.0), 1);
    sums.add(&spender("a"), dollars(2.0), 2);
    sums.add(&spender("b"), dollars(1.0), 3);
    assert_eq!(used(&sums, &spender("a"), 4), 0.7);
    assert_eq!(used(&sums, &spender("b"), 4), 0.1);
    assert_eq!(used(&sums, &spender("c"), 4), 0.0);
}

#[test]
fn subject_that_is_not_named_is_not_limited() {
    let only = Cap { only: Some("team=web".into()), ..cap(CapSubject::Tag, CapPeriod::Day) };
    let mut sums = CapSums::new(vec![only]);
    sums.add(&spender("a"), dollars(50.0), 1);
    assert_eq!(sums.fullest(&spender("a"), 2), None);
    let web = Spender { tags: vec!["team=web".into()], ..spender("a") };
    assert_eq!(used(&sums, &web, 2), 0.0);
}

#[test]
fn each_tag_counts_whole_request() {
    let mut sums = CapSums::new(vec![cap(CapSubject::Tag, CapPeriod::Day)]);
    sums.add(&spender("a"), dollars(4.0), 1);
    let ci = Spender { tags: vec!["env=ci".into()], ..spender("b") };
    assert_eq!(used(&sums, &ci, 2), 0.4);
}

#[test]
fn hours_days_and_months_begin_anew() {
    for (per, next) in [
        (CapPeriod::Hour, MONTH_END + 1),
        (CapPeriod::Day, MONTH_END + 1),
        (CapPeriod::Month, MONTH_END + 1),
    ] {
        let mut sums = CapSums::new(vec![cap(CapSubject::All, per)]);
        sums.add(&spender("a"), dollars(9.0), MONTH_END);
        assert_eq!(used(&sums, &spender("a"), MONTH_END), 0.9, "{per:?}");
        assert_eq!(used(&sums, &spender("a"), next), 0.0, "{per:?}");
        let ends = sums.list(MONTH_END)[0].ends;
        assert_eq!(ends, Some(next), "{per:?}");
    }
}

#[test]
fn call_over_midnight_counts_for_its_day() {
    let mut sums = CapSums::new(vec![cap(CapSubject::All, CapPeriod::Day)]);
    sums.add(&spender("a"), dollars(1.0), MONTH_END + 1);
    // It ended later, but began before midnight.
    sums.add(&spender("a"), dollars(9.0), MONTH_END);
    assert_eq!(used(&sums, &spender("a"), MONTH_END + 1), 0.1);
}

#[test]
fn month_is_read_from_its_first_day_on() {
    let sums = CapSums::new(vec![cap(CapSubject::All, CapPeriod::Month)]);
    // 2026-11-01, 00:00 UTC.
    assert_eq!(sums.since(MONTH_END), 1_793_491_200_000);
    assert_eq!(CapSums::new(Vec::new()).since(MONTH_END), MONTH_END + 1 - DAY);
}

#[test]
fn passing_80_percent_and_whole_is_told_once_each() {
    let mut sums = CapSums::new(vec![cap(CapSubject::All, CapPeriod::Day)]);
    let mut told = Vec::new();
    for cost in [7.9, 0.1, 1.0, 1.0, 1.0] {
        told.push(sums.add(&spender("a"), dollars(cost), 1).len());
    }
    assert_eq!(told, [0, 1, 0, 1, 0]);
}

#[test]
fn one_call_that_passes_both_is_told_once() {
    let mut sums = CapSums::new(vec![cap(CapSubject::All, CapPeriod::Day)]);
    assert_eq!(sums.add(&spender("a"), dollars(12.0), 1).len(), 1);
}

#[test]
fn tokens_count_as_dollars_do() {
    let both = Cap { tokens: Some(2_000), ..cap(CapSubject::Upstream, CapPeriod::Hour) };
    let mut sums = CapSums::new(vec![both]);
    sums.add(&spender("a"), dollars(1.0), 1);
    assert_eq!(used(&sums, &spender("a"), 2), 0.5);
}

#[test]
fn lifted_cap_stops_nothing_until_its_period_ends() {
    let mut sums = CapSums::new(vec![cap(CapSubject::All, CapPeriod::Day)]);
    sums.add(&spender("a"), dollars(12.0), MONTH_END);
    assert_eq!(lift(&mut sums, "other", None), Err(UnknownCap::Name));
    assert_eq!(lift(&mut sums, "all", None), Ok(()));
    assert_eq!(sums.fullest(&spender("a"), MONTH_END), None);
    assert!(sums.list(MONTH_END)[0].lifted);
    sums.add(&spender("a"), dollars(12.0), MONTH_END + 1);
    assert_eq!(used(&sums, &spender("a"), MONTH_END + 1), 1.2);
}

/// What was spent of a cap stays if its limit changes, under whatever place in the list.
#[test]
fn changed_limit_keeps_sums() {
    let (session, all) =
        (cap(CapSubject::Session, CapPeriod::Session), cap(CapSubject::All, CapPeriod::Day));
    let mut sums = CapSums::new(vec![session, all.clone()]);
    sums.add(&spender("a"), dollars(4.0), MONTH_END);
    let raised = Cap { dollars: Some(40.0), ..all.clone() };
    assert_eq!(sums.replace(vec![raised]), [], "its sums go on");
    assert_eq!(used(&sums, &spender("a"), MONTH_END), 0.1);
    let hourly = Cap { per: CapPeriod::Hour, ..all };
    assert_eq!(sums.replace(vec![hourly.clone()]), vec![hourly.clone()], "another sum");
    assert_eq!(used(&sums, &spender("a"), MONTH_END), 0.0);
    let mut past = CapSums::new(vec![hourly]);
    past.add(&spender("a"), dollars(5.0), MONTH_END);
    sums.join(past);
    assert_eq!(used(&sums, &spender("a"), MONTH_END), 0.5);
}

#[test]
fn cap_is_lifted_for_one_subject_alone() {
    let mut sums = CapSums::new(vec![cap(CapSubject::Session, CapPeriod::Day)]);
    sums.add(&spender("a"), dollars(12.0), MONTH_END);
    sums.add(&spender("b"), dollars(12.0), MONTH_END);
    assert_eq!(lift(&mut sums, "session", Some("t.c")), Err(UnknownCap::Subject));
    assert_eq!(lift(&mut sums, "session", Some("t.a")), Ok(()));
    assert_eq!(sums.fullest(&spender("a"), MONTH_END), None);
    assert_eq!(used(&sums, &spender("b"), MONTH_END), 1.2);
    // The next day it limits again.
    sums.add(&spender("a"), dollars(12.0), MONTH_END + 1);
    assert_eq!(used(&sums, &spender("a"), MONTH_END + 1), 1.2);
}

#[test]
fn today_is_counted_without_caps() {
    let mut sums = CapSums::new(Vec::new());
    sums.add(&spender("a"), dollars(2.0), MONTH_END);
    sums.add(&spender("b"), dollars(0.5), MONTH_END);
    assert_eq!(sums.today(MONTH_END), Spending { dollars: 2.5, tokens: 2_000 });
    assert_eq!(sums.today(MONTH_END + 1), Spending::default());
}

#[test]
fn sum_that_nothing_was_added_to_for_longest_is_forgotten() {
    let mut sums = CapSums::new(vec![cap(CapSubject::Session, CapPeriod::Session)]);
    for number in 0..=MOST_SUMS {
        sums.add(&spender(&number.to_string()), dollars(1.0), number as u64);
    }
    assert_eq!(sums.sums.len(), MOST_SUMS);
    assert_eq!(used(&sums, &spender("0"), 0), 0.0);
    assert_eq!(used(&sums, &spender("1"), 0), 0.1);
}

#[test]
fn tokens_of_all_billed_calls_count() {
    let usage = Usage { input: Some(900), output: Some(100), ..Usage::default() };
    let advice = crate::dialect::Attempt {
        kind: "advisor_message".into(),
        model: None,
        usage: usage.clone(),
    };
    let both = Usage { attempts: vec![advice], ..usage };
    assert_eq!(Spending::new(&both, None), Spending { dollars: 0.0, tokens: 2_000 });
}

/// Many small spenders do not make a cap begin again that is reached.
#[test]
fn reached_cap_outlives_many_others() {
    let mut sums = CapSums::new(vec![cap(CapSubject::Session, CapPeriod::Month)]);
    sums.add(&spender("full"), dollars(10.0), 1);
    sums.add(&spender("idle"), dollars(1.0), 2);
    for at in 0..MOST_SUMS as Millis {
        sums.add(&spender(&at.to_string()), dollars(0.1), 3 + at);
    }
    let now = 3 + MOST_SUMS as Millis;
    assert_eq!(used(&sums, &spender("full"), now), 1.0);
    assert_eq!(used(&sums, &spender("idle"), now), 0.0, "forgotten");
}

/// Two processes whose sums are added up by a third place see the same.
#[test]
fn sums_of_all_processes_are_learned() {
    let caps = vec![cap(CapSubject::All, CapPeriod::Day), cap(CapSubject::Tag, CapPeriod::Hour)];
    let mut here = CapSums::new(caps.clone());
    here.add(&spender("a"), dollars(3.0), 5);
    let keys = here.keys(&spender("a"), 5);
    let names: Vec<&str> = keys.iter().map(|key| &*key.cap).collect();
    assert_eq!(names, ["all:all:day", "tag:tag:hour", "tag:tag:hour", "day"]);
    assert_eq!(here.running(5).len(), 4);
    let mut there = CapSums::new(caps);
    there.add(&spender("b"), dollars(5.0), 6);
    for key in &keys[..3] {
        assert_eq!(there.raise(key, dollars(4.0), 6), None, "it knows of more");
        let state = there.raise(key, dollars(8.0), 6).expect("80 % are passed");
        assert_eq!(state.used, 0.8);
    }
    assert_eq!(used(&there, &spender("c"), 6), 0.8);
    assert_eq!(there.raise(&keys[3], dollars(8.0), 6), None);
    assert_eq!(there.today(6), dollars(8.0));
}

#[test]
fn ended_period_is_not_learned() {
    let mut sums = CapSums::new(vec![cap(CapSubject::All, CapPeriod::Day)]);
    let yesterday = sums.keys(&spender("a"), MONTH_END).remove(0);
    assert_eq!(sums.raise(&yesterday, dollars(12.0), MONTH_END + 1), None);
    assert_eq!(used(&sums, &spender("a"), MONTH_END + 1), 0.0);
    let other = SumKey { cap: "all:all:hour".into(), ..yesterday };
    assert_eq!(sums.raise(&other, dollars(12.0), MONTH_END), None, "another cap of that name");
}
