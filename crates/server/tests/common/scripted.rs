//! A backend that answers from a script. Its tokens are bytes; its dialect has `<think>`, `</think>`, `<call NAME>` and
//! `</call>`, each of which is a token of its own.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coldpress::Message;
use coldpress_server::backend::{
    AnswerEvent, AnswerParser, Backend, BackendError, BackendStatus, ChatOptions, Constraint, Event,
    FinishReason, Finished, GrammarSource, ModelDescription, ParserOptions, Request, Sink, SubmitError,
    Ticket, TokenLogprob,
};
use serde_json::Value;

/// What a scripted answer does next.
#[derive(Clone)]
pub enum Step {
    /// Tells this event.
    Tell(Event),
    /// Says this; a log probability is told if it was asked for.
    Say(&'static str),
    /// Waits, unless the request ends.
    Wait(Duration),
    /// Waits for the request to end.
    WaitForEnd,
    /// The answer is complete.
    Finish(FinishReason),
}

/// What the backend saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub prompt: String,
    pub client: String,
    pub seed: u64,
    pub temperature: f32,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    pub logit_bias: Vec<(u32, f32)>,
    pub logprobs: Option<usize>,
    pub constrained: bool,
}

pub struct Scripted {
    /// Answers in turn; the last one is repeated.
    scripts: Mutex<VecDeque<Vec<Step>>>,
    pub seen: Mutex<Vec<Seen>>,
    pub grammars: Mutex<Vec<(GrammarSource, bool)>>,
    pub options: Mutex<Vec<ChatOptions>>,
    pub rendered: Mutex<Vec<Vec<Value>>>,
    pub refusal: Mutex<Option<SubmitError>>,
    /// Reasoning by content and calls.
    pub learnt: Mutex<HashMap<(String, String), String>>,
    pub active: Arc<AtomicUsize>,
    pub cancelled: Arc<AtomicUsize>,
    pub context: usize,
    model: ModelDescription,
}

impl Scripted {
    pub fn new(scripts: Vec<Vec<Step>>) -> Self {
        Self {
            scripts: Mutex::new(scripts.into()),
            seen: Mutex::default(),
            grammars: Mutex::default(),
            options: Mutex::default(),
            rendered: Mutex::default(),
            refusal: Mutex::default(),
            learnt: Mutex::default(),
            active: Arc::default(),
            cancelled: Arc::default(),
            context: 4096,
            model: ModelDescription {
                name: "script".to_owned(),
                family: "scripted".to_owned(),
                parameter_size: "1".to_owned(),
                quantization: "F32".to_owned(),
                file_bytes: 1234,
                trained_context: 8192,
                embedding_length: 8,
                template: Some("{{ messages }}".to_owned()),
                tools: true,
                thinking: true,
                lossy: Vec::new(),
                loaded_at: 1_700_000_000,
            },
        }
    }

    pub fn saying(words: &[&str]) -> Self {
        Self::new(vec![say(words, FinishReason::Stop)])
    }

    /// With settings that change answers.
    pub fn lossy(mut self, lossy: &[&str]) -> Self {
        self.model.lossy = lossy.iter().map(|words| (*words).to_owned()).collect();
        self
    }

    pub fn last_seen(&self) -> Seen {
        self.seen.lock().unwrap().last().cloned().expect("a request")
    }
}

/// A script of these words.
pub fn say(words: &[&str], reason: FinishReason) -> Vec<Step> {
    let words = words.iter().map(|word| Step::Say(Box::leak((*word).to_owned().into_boxed_str())));
    let start =
        [Step::Tell(Event::Started { cached_tokens: 2 }), Step::Tell(Event::Prefill { done: 5, total: 10 })];
    start.into_iter().chain(words).chain([Step::Finish(reason)]).collect()
}

struct ScriptTicket {
    ended: Arc<AtomicBool>,
}

impl Ticket for ScriptTicket {
    fn cancel(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

impl Drop for ScriptTicket {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct Actor {
    steps: Vec<Step>,
    sink: Sink,
    ended: Arc<AtomicBool>,
    prompt_tokens: usize,
    logprobs: Option<usize>,
    cancelled: Arc<AtomicUsize>,
}

impl Actor {
    fn wait(&self, time: Duration) {
        let start = std::time::Instant::now();
        while start.elapsed() < time && !self.ended.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn play(mut self) {
        let mut tokens = 0;
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Tell(event) => (self.sink)(event),
                Step::Say(text) => {
                    tokens += 1;
                    let id = u32::from(text.as_bytes().first().copied().unwrap_or(0));
                    let logprob = self.logprobs.map(|top| TokenLogprob {
                        id,
                        logprob: -0.5,
                        top: (0..top as u32).map(|other| (id + other, -0.5 - other as f32)).collect(),
                    });
                    (self.sink)(Event::Token { id, text: text.to_owned(), logprob });
                }
                Step::Wait(time) => self.wait(time),
                Step::WaitForEnd => self.wait(Duration::from_secs(3600)),
                Step::Finish(reason) => return self.finish(reason, tokens),
            }
            if self.ended.load(Ordering::SeqCst) {
                self.cancelled.fetch_add(1, Ordering::SeqCst);
                return self.finish(FinishReason::Cancelled, tokens);
            }
        }
    }

    fn finish(mut self, reason: FinishReason, completion_tokens: usize) {
        (self.sink)(Event::Finished(Finished {
            reason,
            text: String::new(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 2,
            completion_tokens,
            queue_time: Duration::from_millis(1),
            prefill_time: Duration::from_millis(2),
            decode_time: Duration::from_millis(3),
            bytes_read: 4096,
            hit_rate: 0.75,
            disk_wait: Duration::from_millis(4),
            peak_bytes: 1 << 20,
        }));
    }
}

impl Backend for Scripted {
    fn submit(&self, request: Request, sink: Sink) -> Result<Box<dyn Ticket>, SubmitError> {
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        self.seen.lock().unwrap().push(Seen {
            prompt: self.decode(&request.prompt),
            client: request.client,
            seed: request.sampling.seed,
            temperature: request.sampling.temperature,
            max_tokens: request.max_tokens,
            stop: request.stop,
            logit_bias: request.logit_bias,
            logprobs: request.logprobs,
            constrained: request.constraint.is_some(),
        });
        let mut scripts = self.scripts.lock().unwrap();
        let steps = if scripts.len() > 1 { scripts.pop_front() } else { scripts.front().cloned() };
        let ended = Arc::new(AtomicBool::new(false));
        let actor = Actor {
            steps: steps.expect("a script"),
            sink,
            ended: ended.clone(),
            prompt_tokens: request.prompt.len(),
            logprobs: request.logprobs,
            cancelled: self.cancelled.clone(),
        };
        let active = self.active.clone();
        active.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            actor.play();
            active.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(Box::new(ScriptTicket { ended }))
    }

    fn encode(&self, text: &str, _parse_special: bool) -> Result<Vec<u32>, BackendError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().map(|&id| id as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        vec![id as u8]
    }

    fn has_chat_template(&self) -> bool {
        true
    }

    fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>, BackendError> {
        let values: Vec<Value> =
            messages.iter().map(|message| Value::Object(message.fields().clone())).collect();
        let text: String =
            values.iter().map(|value| format!("{}: {}\n", value["role"], value["content"])).collect();
        self.rendered.lock().unwrap().push(values);
        self.options.lock().unwrap().push(options.clone());
        if text.contains("REFUSE") {
            return Err(BackendError::Template("Conversation roles must alternate (line 3)".to_owned()));
        }
        if text.contains("BREAK") {
            return Err(BackendError::Internal(
                "cannot read /home/somebody/models/secret.gguf: gone".to_owned(),
            ));
        }
        let tools = options.tools.as_ref().map_or(0, Vec::len);
        self.encode(&format!("{text}tools: {tools}\n"), false)
    }

    fn template_reads(&self, variable: &str) -> Option<bool> {
        Some(variable == "reasoning_effort")
    }

    fn dialect_name(&self) -> &str {
        "scripted"
    }

    fn parser(&self, options: ParserOptions) -> Box<dyn AnswerParser> {
        Box::new(ScriptParser { calls: 0, tools: !options.tools.is_empty(), mode: Mode::Content })
    }

    fn starts_in_reasoning(&self, prompt: &[u32]) -> bool {
        self.decode(prompt).contains("THINK")
    }

    fn compile_grammar(
        &self,
        source: &GrammarSource,
        after_reasoning: bool,
    ) -> Result<Constraint, BackendError> {
        if let GrammarSource::JsonSchema(schema) = source
            && schema.to_string().contains("if_then")
        {
            let message = "#/properties/x/if_then is not supported and cannot be enforced";
            return Err(BackendError::Grammar(message.to_owned()));
        }
        self.grammars.lock().unwrap().push((source.clone(), after_reasoning));
        Ok(Constraint(Box::new(())))
    }

    fn learn_reasoning(&self, content: &str, calls: &str, reasoning: &str) {
        let key = (content.to_owned(), calls.to_owned());
        self.learnt.lock().unwrap().insert(key, reasoning.to_owned());
    }

    fn reasoning_of(&self, content: &str, calls: &str) -> Option<String> {
        self.learnt.lock().unwrap().get(&(content.to_owned(), calls.to_owned())).cloned()
    }

    fn context(&self) -> usize {
        self.context
    }

    fn model(&self) -> &ModelDescription {
        &self.model
    }

    fn status(&self) -> BackendStatus {
        BackendStatus {
            running: self.active.load(Ordering::SeqCst),
            memory: vec![("slots".to_owned(), 7)],
            ..BackendStatus::default()
        }
    }
}

enum Mode {
    Content,
    Reasoning,
    Call,
}

struct ScriptParser {
    calls: usize,
    tools: bool,
    mode: Mode,
}

impl AnswerParser for ScriptParser {
    fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        let called =
            text.strip_prefix("<call ").and_then(|rest| rest.strip_suffix('>')).filter(|_| self.tools);
        match (text, called) {
            ("<think>", _) => self.mode = Mode::Reasoning,
            ("</think>", _) => self.mode = Mode::Content,
            ("</call>", _) if self.tools => {
                events.push(AnswerEvent::ToolCallEnd { index: self.calls - 1 });
                self.mode = Mode::Content;
            }
            (_, Some(name)) => {
                let (index, name) = (self.calls, name.to_owned());
                events.push(AnswerEvent::ToolCallBegin { index, id: format!("call_{index}"), name });
                self.calls += 1;
                self.mode = Mode::Call;
            }
            _ => events.push(match self.mode {
                Mode::Content => AnswerEvent::Content(text.to_owned()),
                Mode::Reasoning => AnswerEvent::Reasoning(text.to_owned()),
                Mode::Call => AnswerEvent::ToolCallArguments { index: self.calls - 1, json: text.to_owned() },
            }),
        }
    }

    fn finish(&mut self, _events: &mut Vec<AnswerEvent>) {}
}
