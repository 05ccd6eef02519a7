//! Events of what is kept, as a subscriber hears them that knows nothing of the server but vLLM's
//! format.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use longview_model::tokenizer::Specials;
use longview_server::{ApiKey, KvEventsOptions, ServeError, Server, ServerOptions};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::support::{Library, PATIENCE, Served, document, facts_of_model, question, serve};

const BLOCK: usize = 64;
const TOPIC: &str = "kv@test";

/// Ports that are free, on this machine's own address.
fn events() -> Option<KvEventsOptions> {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Some(KvEventsOptions { address, replay: Some(address), topic: TOPIC.to_owned() })
}

/// Who hears events, and what is there by them: the tokens up to a block's end, by tier and hash.
struct Subscriber {
    runtime: Runtime,
    socket: SubSocket,
    next: Option<u64>,
    held: BTreeMap<String, BTreeMap<u64, Vec<u32>>>,
    n_cleared: usize,
}

impl Subscriber {
    fn new(served: &Served) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let address = served.kv_events().0;
        let socket = runtime.block_on(async {
            let mut socket = SubSocket::new();
            socket.connect(&format!("tcp://{address}")).await.expect("a connection");
            socket.subscribe(TOPIC).await.expect("a subscription");
            socket
        });
        Self { runtime, socket, next: None, held: BTreeMap::new(), n_cleared: 0 }
    }

    /// Takes one message, if one comes in time.
    fn take(&mut self, time: Duration) -> bool {
        let socket = &mut self.socket;
        let message = self.runtime.block_on(async { timeout(time, socket.recv()).await });
        let Ok(message) = message else { return false };
        let frames = message.expect("a message").into_vec();
        let [topic, number, payload] = &frames[..] else { panic!("{} frames", frames.len()) };
        assert_eq!(&topic[..], TOPIC.as_bytes());
        let number = u64::from_be_bytes(number[..].try_into().expect("8 bytes"));
        if let Some(next) = self.next.replace(number + 1) {
            assert_eq!(number, next, "none is missing");
        }
        self.apply(payload);
        true
    }

    fn apply(&mut self, payload: &[u8]) {
        let batch: Value = rmp_serde::from_slice(payload).expect("MessagePack");
        assert!(batch[0].as_f64().is_some_and(|unix_s| unix_s > 1.7e9), "{batch}");
        assert_eq!(batch[2], 0, "the rank");
        for event in batch[1].as_array().expect("events") {
            match event[0].as_str() {
                Some("AllBlocksCleared") => {
                    self.held.clear();
                    self.n_cleared += 1;
                }
                Some("BlockStored") => self.stored(event),
                Some("BlockRemoved") => self.removed(event),
                _ => panic!("{event}"),
            }
        }
    }

    fn stored(&mut self, event: &Value) {
        assert_eq!(event.as_array().map(Vec::len), Some(8), "{event}");
        assert_eq!(
            (event[4].as_u64(), &event[5], &event[7]),
            (Some(64), &json!(null), &json!(null))
        );
        let tier = self.held.entry(event[6].as_str().expect("a medium").to_owned()).or_default();
        let mut before = match event[2].as_u64() {
            Some(parent) => tier.get(&parent).expect("the block before is there").clone(),
            None => Vec::new(),
        };
        let hashes = numbers(&event[1]);
        let tokens: Vec<u32> = numbers(&event[3]).into_iter().map(|id| id as u32).collect();
        assert_eq!(tokens.len(), hashes.len() * BLOCK);
        for (hash, block) in hashes.into_iter().zip(tokens.chunks(BLOCK)) {
            before.extend(block);
            // What is told again after a connection is what it was.
            let old = tier.insert(hash, before.clone());
            assert!(old.is_none_or(|old| old == before), "a hash stands for one prefix");
        }
    }

    fn removed(&mut self, event: &Value) {
        assert_eq!(event.as_array().map(Vec::len), Some(3), "{event}");
        let tier = self.held.entry(event[2].as_str().expect("a medium").to_owned()).or_default();
        for hash in numbers(&event[1]) {
            assert!(tier.remove(&hash).is_some(), "only what is there goes");
        }
    }

    /// Prefixes of whole blocks that a tier has.
    fn prefixes(&self, tier: &str) -> BTreeSet<&[u32]> {
        self.held.get(tier).into_iter().flat_map(BTreeMap::values).map(Vec::as_slice).collect()
    }

    /// Waits until a tier has all blocks of these texts, and no others.
    fn wait_for(&mut self, tier: &str, texts: &[&[u32]]) {
        let blocks = |ids: &&[u32]| -> Vec<Vec<u32>> {
            (1..=ids.len() / BLOCK).map(|n| ids[..n * BLOCK].to_vec()).collect()
        };
        let wanted: BTreeSet<Vec<u32>> = texts.iter().flat_map(blocks).collect();
        let wanted: BTreeSet<&[u32]> = wanted.iter().map(Vec::as_slice).collect();
        let end = Instant::now() + PATIENCE;
        while self.prefixes(tier) != wanted {
            let has = self.prefixes(tier).len();
            assert!(Instant::now() < end, "{tier}: has {has} blocks, not {}", wanted.len());
            self.take(Duration::from_millis(200));
        }
    }
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number")).collect()
}

fn tokens(text: &str) -> Vec<u32> {
    facts_of_model().tokenizer.encode(text, Specials::Add).expect("tokens")
}

/// A context, and the tokens that the server read of it: what all conversations about the text
/// begin with.
fn add(served: &Served, text: &str) -> (String, Vec<u32>) {
    let answer = served.post("/v1/contexts", &json!({ "text": text }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let n_tokens = answer.json()["n_tokens"].as_u64().expect("a number") as usize;
    let asked = format!("{text}\n\nWho rested?");
    let asked = json!({ "messages": [{ "role": "user", "content": asked }] });
    let prompt = served.post("/apply-template", &asked).json();
    let prompt = prompt["prompt"].as_str().expect("a prompt");
    let tokenizer = facts_of_model().tokenizer;
    let ids = tokenizer.encode(prompt, Specials::AsWritten).expect("tokens");
    assert!(
        n_tokens < ids.len()
            && tokenizer.encode(text, Specials::Add).expect("tokens").len() <= n_tokens + 2
    );
    (answer.json()["id"].as_str().expect("an id").to_owned(), ids[..n_tokens].to_vec())
}

#[test]
fn blocks_come_and_go_with_what_is_kept() {
    let library = Library::new();
    let options = ServerOptions { max_kept: 1, kv_events: events(), ..library.options() };
    let served = serve(options);
    let mut subscriber = Subscriber::new(&served);
    let (first, second) = (document(40, 1).0, document(30, 2).0);
    let (id, first_ids) = add(&served, &first);
    assert!(first_ids.len() > 4 * BLOCK);
    subscriber.wait_for("CPU", &[&first_ids]);
    subscriber.wait_for("DISK", &[&first_ids]);
    // There is room for one in memory: the other stays on disk.
    let (other, second_ids) = add(&served, &second);
    subscriber.wait_for("CPU", &[&second_ids]);
    subscriber.wait_for("DISK", &[&first_ids, &second_ids]);
    assert_eq!(served.ask("DELETE", &format!("/v1/contexts/{id}"), &[], "").status, 200);
    subscriber.wait_for("DISK", &[&second_ids]);
    subscriber.wait_for("CPU", &[&second_ids]);

    // Who comes later hears all that is there.
    let mut late = Subscriber::new(&served);
    late.wait_for("DISK", &[&second_ids]);
    late.wait_for("CPU", &[&second_ids]);
    assert!(late.n_cleared > 0);
    assert_eq!(served.ask("DELETE", &format!("/v1/contexts/{other}"), &[], "").status, 200);
    for subscriber in [&mut subscriber, &mut late] {
        subscriber.wait_for("DISK", &[]);
        subscriber.wait_for("CPU", &[]);
    }
    assert!(subscriber.prefixes("GPU").is_empty());
}

#[test]
fn what_lies_on_disk_is_told_at_start_and_what_is_opened_when_it_is() {
    let library = Library::new();
    let (id, ids) = add(&serve(library.options()), &document(40, 3).0);
    let served = serve(ServerOptions { kv_events: events(), ..library.options() });
    let mut subscriber = Subscriber::new(&served);
    subscriber.wait_for("DISK", &[&ids]);
    assert!(subscriber.prefixes("CPU").is_empty());
    let messages = json!([{ "role": "user", "content": "Who rested?" }]);
    let asked = json!({ "context_id": id, "messages": messages, "max_tokens": 4 });
    let answer = served.post("/v1/chat/completions", &asked);
    assert_eq!(answer.status, 200, "{answer:?}");
    let cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let end = Instant::now() + PATIENCE;
    let whole = &ids[..ids.len() / BLOCK * BLOCK];
    while !subscriber.prefixes("CPU").contains(whole) {
        assert!(Instant::now() < end, "it is in memory: {cached} tokens were known");
        subscriber.take(Duration::from_millis(200));
    }
    assert!(cached.as_u64().is_some_and(|n| n as usize >= whole.len()), "{cached}");
}

#[test]
fn rows_on_the_device_are_told_as_such() {
    let served = serve_full();
    let mut subscriber = Subscriber::new(&served);
    let (text, facts) = document(20, 4);
    served.post("/v1/completions", &question(&text, &facts[0]));
    let ids = tokens(&text);
    let whole = &ids[..ids.len() / BLOCK * BLOCK];
    let end = Instant::now() + PATIENCE;
    while !subscriber.prefixes("GPU").contains(whole) {
        assert!(Instant::now() < end, "it is on the device");
        subscriber.take(Duration::from_millis(200));
    }
    assert!(subscriber.prefixes("CPU").is_empty());
}

/// A server without a library whose policy lets all rows lie on the device.
fn serve_full() -> Served {
    use longview_scheduler::{PolicyOptions, Preset};
    let full: Preset = "full".parse().expect("a preset");
    let model =
        longview_server::ModelFacts { policy: PolicyOptions::new(full), ..facts_of_model() };
    let options = ServerOptions { kv_events: events(), ..ServerOptions::default() };
    let served = crate::support::begin_model(model, options, 128, Duration::ZERO);
    served.wait_until_ready();
    served
}

#[test]
fn others_than_the_first_key_are_not_told_of() {
    let keys = ["alice:one", "bob:two"].map(|key| ApiKey::parse(key).expect("a key"));
    let options =
        ServerOptions { api_keys: keys.to_vec(), kv_events: events(), ..ServerOptions::default() };
    let served = crate::support::begin(options, 128, Duration::ZERO);
    served.wait_until_ready();
    let mut subscriber = Subscriber::new(&served);
    let (own, facts) = document(20, 5);
    let (others, _) = document(20, 6);
    let ask = |key: &str, text: &str| {
        let key = format!("Bearer {key}");
        let body = question(text, &facts[0]).to_string();
        served.ask("POST", "/v1/completions", &[("authorization", &key)], &body)
    };
    assert_eq!(ask("two", &others).status, 200);
    assert_eq!(ask("one", &own).status, 200);
    let ids = tokens(&own);
    let whole = &ids[..ids.len() / BLOCK * BLOCK];
    let end = Instant::now() + PATIENCE;
    while !subscriber.prefixes("CPU").contains(whole) {
        assert!(Instant::now() < end, "the first key's context is told");
        subscriber.take(Duration::from_millis(200));
    }
    let first_of_others = tokens(&others)[..2 * BLOCK].to_vec();
    assert!(!subscriber.prefixes("CPU").contains(&first_of_others[..]));
}

#[test]
fn missed_messages_are_asked_for_by_number() {
    let served = serve(ServerOptions { kv_events: events(), ..ServerOptions::default() });
    let mut subscriber = Subscriber::new(&served);
    let (text, facts) = document(20, 7);
    served.post("/v1/completions", &question(&text, &facts[0]));
    while subscriber.prefixes("CPU").is_empty() {
        assert!(subscriber.take(PATIENCE), "a message");
    }
    let last = subscriber.next.expect("a number") - 1;
    let address = served.kv_events().1.expect("an address");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut heard = runtime.block_on(async {
        let mut socket = DealerSocket::new();
        socket.connect(&format!("tcp://{address}")).await.expect("a connection");
        let start = bytes::Bytes::copy_from_slice(&0u64.to_be_bytes());
        let asked = vec![bytes::Bytes::new(), start];
        socket.send(ZmqMessage::try_from(asked).expect("frames")).await.expect("sent");
        let mut heard = Vec::new();
        loop {
            let message = timeout(PATIENCE, socket.recv()).await.expect("in time");
            let frames = message.expect("a message").into_vec();
            let [empty, number, payload] = &frames[..] else { panic!("{} frames", frames.len()) };
            assert!(empty.is_empty());
            let number = u64::from_be_bytes(number[..].try_into().expect("8 bytes"));
            if payload.is_empty() {
                assert_eq!(number, u64::MAX, "the end");
                return heard;
            }
            heard.push((number, payload.to_vec()));
        }
    });
    assert!(heard.iter().map(|(number, _)| *number).eq(0..heard.len() as u64));
    assert!(heard.len() as u64 > last);
    // They say the same as what was heard.
    heard.truncate(last as usize + 1);
    let mut again = Subscriber { held: BTreeMap::new(), ..Subscriber::new(&served) };
    heard.iter().for_each(|(_, payload)| again.apply(payload));
    assert_eq!(again.held, subscriber.held);
}

#[test]
fn an_address_that_others_reach_needs_a_key() {
    let address = SocketAddr::from(([0, 0, 0, 0], 0));
    let kv_events = Some(KvEventsOptions { address, replay: None, topic: String::new() });
    let options = ServerOptions { port: 0, kv_events, ..ServerOptions::default() };
    let load = || -> Result<longview_engine::Engine<longview_cpu::CpuBackend>, _> {
        Err("it is not loaded".into())
    };
    let error = Server::start(options, facts_of_model(), load).err().expect("it is refused");
    assert!(matches!(error, ServeError::OpenKvEvents(_)), "{error}");
    assert!(error.to_string().contains("--api-key"), "{error}");
}
