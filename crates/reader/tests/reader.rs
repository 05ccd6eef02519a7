//! A reader on the CPU: the same code that answers in a browser.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::{HeadId, LayerId};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{EngineOptions, KvResidency};
use longview_model::folder::ModelFolder;
use longview_reader::{Answer, Finish, Question, Reader, Step};
use longview_scheduler::{
    AttentionBound, HostStoreKind, PolicyOptions, Preset, SAMPLED_CONFIDENCE,
};
use pollster::block_on;

const NAMES: [&str; 3] = ["velvet-comet", "quiet-harbour", "amber-lantern"];
const NUMBERS: [&str; 3] = ["2003322", "2019860", "5828235"];

/// A document of some 830 tokens with three numbers in it.
fn document() -> String {
    let mut text = String::new();
    for i in 0..90 {
        if i % 30 == 10 {
            let (name, number) = (NAMES[i / 30], NUMBERS[i / 30]);
            text += &format!("One of the special magic numbers for {name} is: {number}. ");
        }
        let who = ["A captain", "His brother", "The old road", "Every evening"][i % 4];
        let what = ["looked upon the harbour", "left a letter", "passed the garden"][i % 3];
        text += &format!("{who} {what}. ");
    }
    text
}

fn reader() -> Reader<CpuBackend> {
    reader_with(KvResidency::Host)
}

fn reader_with(kv_residency: KvResidency) -> Reader<CpuBackend> {
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
    let options = EngineOptions {
        ctx_size: 2048,
        chunk_size: 256,
        simulate_device: true,
        overlap: false,
        host_store: HostStoreKind::Plain,
        kv_residency,
        ..EngineOptions::default()
    };
    let folder = ModelFolder::open(&path).unwrap();
    block_on(Reader::load(backend, folder, options, &mut |_, _| {})).unwrap()
}

fn clusterkv() -> PolicyOptions {
    PolicyOptions::new(Preset::Clusterkv).with_budget(256)
}

fn question(i: usize, policy: &PolicyOptions) -> Question {
    let name = NAMES[i];
    Question {
        text: format!(
            "What is the special magic number for {name} mentioned in the provided text?"
        ),
        policy: policy.clone(),
        max_tokens: 40,
        temperature: 0.0,
        map: None,
    }
}

fn ask(reader: &mut Reader<CpuBackend>, question: &Question) -> Answer {
    block_on(reader.ask(question, &mut |_| ControlFlow::Continue(()))).unwrap()
}

fn read_all(reader: &mut Reader<CpuBackend>, policy: &PolicyOptions) {
    let go_on = &mut |_| ControlFlow::Continue(());
    assert!(block_on(reader.read(&document(), policy, go_on)).unwrap().complete);
}

/// The text of the passage that an answer attended to most.
fn top(answer: &Answer) -> String {
    document()[answer.passages[0].place.clone()].to_owned()
}

#[test]
fn answers_are_right_and_name_where_they_stand() {
    let mut reader = reader();
    read_all(&mut reader, &clusterkv());
    for policy in [clusterkv(), PolicyOptions::new(Preset::Full)] {
        for (i, number) in NUMBERS.iter().enumerate() {
            let answer = ask(&mut reader, &question(i, &policy));
            assert!(answer.text.ends_with(&format!(" {number}.")), "{answer:?}");
            assert_eq!(answer.finish, Finish::End);
            assert!(top(&answer).ends_with(&format!("{} is: {number}.", NAMES[i])), "{answer:?}");
            assert_eq!(answer.hit_rate.is_some(), policy.preset == Preset::Clusterkv);
        }
    }
}

#[test]
fn a_question_leaves_no_trace() {
    let mut reader = reader();
    read_all(&mut reader, &clusterkv());
    let first = ask(&mut reader, &question(0, &clusterkv()));
    let memory = reader.memory();
    ask(&mut reader, &question(1, &clusterkv()));
    let again = ask(&mut reader, &question(0, &clusterkv()));
    assert_eq!((first.text, first.passages), (again.text, again.passages));
    assert_eq!(reader.memory(), memory);
}

#[test]
fn a_policy_that_cannot_answer_leaves_the_document_as_it_was() {
    let mut reader = reader();
    read_all(&mut reader, &clusterkv());
    let expected = ask(&mut reader, &question(0, &clusterkv()));
    for preset in [Preset::H2o, Preset::Infllm] {
        let other = question(0, &PolicyOptions::new(preset).with_budget(256));
        let result = block_on(reader.ask(&other, &mut |_| ControlFlow::Continue(())));
        assert_eq!(result.unwrap_err().code(), "bad-input");
        let again = ask(&mut reader, &question(0, &clusterkv()));
        assert_eq!((&again.text, &again.passages), (&expected.text, &expected.passages));
        assert!(again.hit_rate.is_some(), "it is recalled again");
    }
}

#[test]
fn speed_is_that_of_the_call_and_not_of_what_was_read_before() {
    let mut reader = reader();
    let mut stop = |_| ControlFlow::Break(());
    block_on(reader.read(&document(), &clusterkv(), &mut stop)).unwrap();
    let mut heard = Vec::new();
    block_on(reader.read_on(&mut |p| {
        heard.push(p);
        ControlFlow::Continue(())
    }))
    .unwrap();
    let first = heard[0];
    assert_eq!((first.done, first.before), (512, 256));
    let expected = 256.0 / first.elapsed.as_secs_f64();
    assert!((first.tokens_per_s() / expected - 1.0).abs() < 1e-9, "{first:?}");
    let left = first.elapsed.mul_f64((first.total - 512) as f64 / 256.0);
    assert!(first.eta().abs_diff(left).as_micros() < 2, "{first:?}");
}

#[test]
fn what_was_read_before_a_stop_can_be_asked_and_the_rest_follows() {
    let mut reader = reader();
    let mut stop = |_| ControlFlow::Break(());
    let part = block_on(reader.read(&document(), &clusterkv(), &mut stop)).unwrap();
    assert_eq!((part.tokens, part.complete), (256, false));
    assert!(ask(&mut reader, &question(0, &clusterkv())).text.ends_with(" 2003322."));
    let mut seen = Vec::new();
    let rest = block_on(reader.read_on(&mut |p| {
        seen.push(p.done);
        ControlFlow::Continue(())
    }));
    let rest = rest.unwrap();
    assert!(rest.seconds >= part.seconds, "both calls read it: {rest:?}");
    assert!(rest.complete && rest.tokens == part.total, "{rest:?}");
    assert_eq!((seen[0], *seen.last().unwrap()), (512, part.total));
    assert!(ask(&mut reader, &question(2, &clusterkv())).text.ends_with(" 5828235."));
}

#[test]
fn a_saved_document_is_asked_without_reading_it() {
    let mut first = reader();
    read_all(&mut first, &clusterkv());
    let want = ask(&mut first, &question(1, &clusterkv()));
    let mut file = Vec::new();
    block_on(first.save(b"{}", &mut file)).unwrap();
    let mut second = reader();
    let state = block_on(second.open(&file, &document(), &clusterkv())).unwrap();
    assert!(state.complete && state.tokens > 800, "{state:?}");
    let answer = ask(&mut second, &question(1, &clusterkv()));
    assert_eq!((&answer.text, &answer.passages), (&want.text, &want.passages));
    let other = document().replace("captain", "sailor");
    let error = block_on(second.open(&file, &other, &clusterkv())).unwrap_err();
    assert_eq!(error.code(), "bad-session");
    // Who knows that all of it is there need not have it counted again.
    let whole = block_on(second.open_whole(&file, &document(), state.total, &clusterkv())).unwrap();
    assert_eq!((whole.tokens, whole.total, whole.complete), (state.tokens, state.total, true));
    let answer = ask(&mut second, &question(1, &clusterkv()));
    assert_eq!((&answer.text, &answer.passages), (&want.text, &want.passages));
    let error = block_on(second.open_whole(&file, &other, state.total - 1, &clusterkv()));
    assert_eq!(error.unwrap_err().code(), "bad-session", "of another length it is looked at");
    *file.last_mut().unwrap() ^= 1;
    let error = block_on(second.open(&file, &document(), &clusterkv())).unwrap_err();
    assert_eq!(error.code(), "bad-session");
    assert!(
        ask(&mut second, &question(0, &clusterkv())).text.ends_with(" 2003322."),
        "still there"
    );
}

#[test]
fn a_longer_document_begins_with_what_was_read_of_a_shorter_one() {
    let mut first = reader();
    read_all(&mut first, &clusterkv());
    let mut file = Vec::new();
    block_on(first.save(b"{}", &mut file)).unwrap();
    let longer = document() + "\n\nOne of the special magic numbers for green-tower is: 7310264.";
    let mut second = reader();
    let state = block_on(second.begin_with(&file, &longer, &clusterkv())).unwrap();
    assert!(!state.complete && state.tokens > 800 && state.total > state.tokens, "{state:?}");
    let mut read = Vec::new();
    let state = block_on(second.read_on(&mut |p| {
        read.push((p.before, p.total));
        ControlFlow::Continue(())
    }));
    assert!(state.unwrap().complete);
    assert!(read.iter().all(|(before, total)| *before > 800 && total > before), "{read:?}");
    let mut asked = question(0, &clusterkv());
    asked.text = asked.text.replace(NAMES[0], "green-tower");
    assert!(ask(&mut second, &asked).text.ends_with(" 7310264."));
    assert_eq!(second.text(), longer);
}

#[test]
fn an_answer_says_how_much_was_left_out_at_most() {
    let mut reader = reader();
    read_all(&mut reader, &clusterkv());
    let mut policy = PolicyOptions::new(Preset::Longview).with_budget(256);
    assert_eq!(ask(&mut reader, &question(1, &policy)).left_out, None);
    policy.attention_bound = Some(AttentionBound::Sampled);
    let answer = ask(&mut reader, &question(1, &policy));
    let left_out = answer.left_out.expect("the policy bounds it");
    assert!(0.0 < left_out.median && left_out.median <= left_out.most, "{left_out:?}");
    assert!(left_out.most < 1.0 && left_out.confidence == SAMPLED_CONFIDENCE, "{left_out:?}");
    assert!(answer.fetched_bytes > 0, "rows were fetched into the cache");
}

#[test]
fn steps_tell_where_tokens_stood_and_end_an_answer() {
    let mut reader = reader();
    read_all(&mut reader, &clusterkv());
    let asked = Question { map: Some((LayerId(2), HeadId(1))), ..question(0, &clusterkv()) };
    let (mut n_steps, mut counts) = (0, [0usize; 6]);
    let mut hear = |step: &Step<'_>| {
        n_steps += 1;
        let map = step.map.as_ref().expect("it was asked for");
        assert_eq!((map.cell_tokens, map.kinds.len() > 800), (1, true));
        counts = [0; 6];
        map.kinds.iter().for_each(|kind| counts[*kind as usize] += 1);
        let attended: usize = counts[1..5].iter().sum();
        assert!(attended <= 256, "{counts:?}");
        if step.tokens == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let answer = block_on(reader.ask(&asked, &mut hear)).unwrap();
    assert_eq!((answer.finish, answer.tokens), (Finish::Stopped, 5));
    assert!(counts[1] == 16 && counts[2] > 64 && counts[3] + counts[4] > 80, "{counts:?}");
    assert!(n_steps > 20, "the question's tokens are steps too");
    let nowhere = Question { map: Some((LayerId(5), HeadId(0))), ..asked };
    let error = block_on(reader.ask(&nowhere, &mut |_| ControlFlow::Continue(()))).unwrap_err();
    assert_eq!(error.code(), "bad-input");
}

#[test]
fn a_limit_bounds_the_cache_and_refuses_what_cannot_fit() {
    let mut reader = reader();
    read_all(&mut reader, &clusterkv());
    ask(&mut reader, &question(0, &clusterkv()));
    let usual = reader.memory().device_bytes;
    reader.limit_device_bytes(Some(usual * 3 / 2));
    ask(&mut reader, &question(0, &clusterkv()));
    let more = reader.memory().device_bytes;
    assert!(usual < more && more <= usual * 3 / 2, "{usual} {more}");
    let full = question(0, &PolicyOptions::new(Preset::Full));
    let error = block_on(reader.ask(&full, &mut |_| ControlFlow::Continue(()))).unwrap_err();
    assert_eq!(error.code(), "out-of-memory");
    let message = error.to_string();
    assert!(message.contains("choose a policy that recalls"), "{message}");
}

/// All rows are on the device while the limit allows it, without another reading.
#[test]
fn all_rows_stay_on_the_device_up_to_the_limit() {
    let on_host = {
        let mut reader = reader();
        read_all(&mut reader, &clusterkv());
        ask(&mut reader, &question(0, &clusterkv()))
    };
    let mut reader = reader_with(KvResidency::Device);
    read_all(&mut reader, &clusterkv());
    let same = |answer: &Answer| {
        // Sums over rows that lie elsewhere are made in another order.
        assert_eq!((&answer.text, top(answer)), (&on_host.text, top(&on_host)));
        answer.hit_rate.is_some()
    };
    assert!(!same(&ask(&mut reader, &question(0, &clusterkv()))), "nothing is looked up");
    let all = reader.memory().device_bytes;
    reader.limit_device_bytes(Some(all - 1));
    assert!(same(&ask(&mut reader, &question(0, &clusterkv()))), "what is missing is fetched");
    assert!(reader.memory().device_bytes < all);
    reader.limit_device_bytes(Some(2 * all));
    assert!(!same(&ask(&mut reader, &question(0, &clusterkv()))));
    reader.limit_device_bytes(None);
    assert!(!same(&ask(&mut reader, &question(0, &clusterkv()))));
    assert_eq!(reader.memory().device_bytes, all);
}

#[test]
fn mistakes_have_codes() {
    let mut reader = reader();
    let code = |error: longview_reader::ReaderError| error.code();
    let go_on = &mut |_| ControlFlow::Continue(());
    let asked = question(0, &clusterkv());
    let error = block_on(reader.ask(&asked, &mut |_| ControlFlow::Continue(()))).unwrap_err();
    assert_eq!(code(error), "bad-input");
    let error = block_on(reader.read(" \n", &clusterkv(), go_on)).unwrap_err();
    assert_eq!(code(error), "bad-input");
    let long = document().repeat(3);
    let error = block_on(reader.read(&long, &clusterkv(), go_on)).unwrap_err();
    assert_eq!(code(error), "context-too-long");
    let small = PolicyOptions::new(Preset::Clusterkv).with_budget(3);
    let error = block_on(reader.read(&document(), &small, go_on)).unwrap_err();
    assert_eq!(code(error), "bad-input");
}
