//! Questions and their answers, with the passages that they rest on.

use eframe::egui::{Button, RichText, ScrollArea, TextStyle, TextWrapMode, Ui, Vec2};

use super::{markdown, widgets};
use crate::document::{Document, Exchange, Reply};
use crate::engine::{Answer, Attention, Finish};
use crate::figures::percent;
use crate::state::{Action, Dialog, EngineState, State};
use crate::strings;
use crate::theme::{self, GAP, TIGHT, WIDE};

/// Passages that are listed.
const LISTED: usize = 5;

/// Draws the conversation, or what to ask.
pub fn show(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let is_embedded = matches!(&state.engine, EngineState::Ready(model) if model.is_embedded);
    let Some(document) = state.document() else { return };
    let area = ScrollArea::vertical().id_salt(("answers", document.id.0)).auto_shrink(false);
    area.stick_to_bottom(true).show(ui, |ui| {
        if document.conversation.is_empty() {
            beginning(ui, document, is_embedded, actions);
            return;
        }
        for (i, exchange) in document.conversation.iter().enumerate() {
            let can_ask = document.read_state().is_some() && !document.is_answering();
            let place = Place { document, exchange, at: i, can_ask };
            widgets::card(ui, |ui| one(ui, &place, actions));
            ui.add_space(GAP);
        }
    });
}

struct Place<'a> {
    document: &'a Document,
    exchange: &'a Exchange,
    at: usize,
    can_ask: bool,
}

fn beginning(ui: &mut Ui, document: &mut Document, is_embedded: bool, actions: &mut Vec<Action>) {
    let can_ask = document.read_state().is_some();
    ui.label(widgets::prose(if can_ask { strings::ASK_SOMETHING } else { strings::READ_FIRST }));
    ui.add_space(GAP);
    if is_embedded {
        let has_questions = !document.suggestions.is_empty();
        let note = if has_questions { strings::EMBEDDED_NOTE } else { strings::EMBEDDED_NOTE_NONE };
        widgets::caption(ui, note);
        if ui.add(widgets::secondary(strings::CHOOSE_MODEL)).on_hover_text("Ctrl M").clicked() {
            actions.push(Action::ShowDialog(Some(Dialog::Models)));
        }
    }
    if document.suggestions.is_empty() {
        return;
    }
    ui.add_space(WIDE);
    widgets::group(ui, strings::TRY_THESE);
    for question in document.suggestions.clone() {
        let size = Vec2::new(ui.available_width(), 36.0);
        let button = Button::new(question.as_str()).wrap().min_size(size);
        if ui.add_enabled(can_ask, button).clicked() {
            document.draft = question;
            actions.push(Action::Ask);
        }
    }
}

fn one(ui: &mut Ui, place: &Place<'_>, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    ui.label(widgets::prose(&place.exchange.question).color(palette.weak));
    let first = place.exchange.replies.first().map(Reply::shown);
    for (i, reply) in place.exchange.replies.iter().enumerate() {
        if i > 0 {
            ui.add_space(GAP);
            ui.separator();
        }
        reply_of(ui, place, i, reply, actions);
        if let (1.., Some(first), Some(_)) = (i, first, &reply.answer) {
            let is_same = first == reply.shown();
            widgets::caption(
                ui,
                if is_same { strings::SAME_ANSWER } else { strings::OTHER_ANSWER },
            );
        }
    }
    buttons(ui, place, actions);
}

fn reply_of(
    ui: &mut Ui,
    place: &Place<'_>,
    index: usize,
    reply: &Reply,
    actions: &mut Vec<Action>,
) {
    let palette = theme::palette(ui.visuals());
    if place.exchange.replies.len() > 1 {
        widgets::group(ui, &strings::attention(reply.attention));
    }
    if !reply.shown().is_empty() {
        markdown::show(ui, reply.shown());
    }
    if let Some(failure) = &reply.failure {
        ui.colored_label(palette.bad, failure);
    }
    if reply.task.is_some() {
        working(ui, reply);
    }
    if let Some(answer) = &reply.answer {
        ended(ui, reply, answer);
        if index == 0 {
            passages(ui, place, index, answer, actions);
        }
    }
}

fn working(ui: &mut Ui, reply: &Reply) {
    let line = match reply.figures {
        None => strings::WAITING.to_owned(),
        Some((0, _)) => strings::READING_QUESTION.to_owned(),
        Some((tokens, rate)) => strings::answer_figures(tokens, rate),
    };
    widgets::caption(ui, line);
}

fn ended(ui: &mut Ui, reply: &Reply, answer: &Answer) {
    let mut line = match answer.finish {
        Finish::End => String::new(),
        Finish::Stopped => format!("{} ", strings::STOPPED),
        Finish::Length => format!("{} ", strings::CUT),
    };
    if let Some(attended) = answer.attended {
        line += &strings::attended(attended, answer.context);
    }
    widgets::caption(ui, line.trim_end());
    if let Some(left_out) = &answer.left_out {
        ui.add_space(TIGHT - GAP);
        widgets::caption(ui, strings::left_out(left_out));
    }
    if let Some((tokens, rate)) = reply.figures {
        ui.add_space(TIGHT - GAP);
        widgets::caption(ui, strings::answer_figures(tokens, rate));
    }
}

fn passages(
    ui: &mut Ui,
    place: &Place<'_>,
    reply: usize,
    answer: &Answer,
    actions: &mut Vec<Action>,
) {
    if answer.passages.is_empty() {
        return;
    }
    ui.add_space(TIGHT);
    widgets::group(ui, strings::PASSAGES);
    ui.scope(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        ui.spacing_mut().button_padding.x = 0.0;
        ui.spacing_mut().interact_size.y = 28.0;
        let palette = theme::palette(ui.visuals());
        for (rank, passage) in answer.passages.iter().take(LISTED).enumerate() {
            let quote = place.document.quote(passage);
            let shown = format!("{}   {quote}", rank + 1);
            let share = RichText::new(percent(passage.weight)).text_style(TextStyle::Small);
            let share = share.color(palette.weak);
            let button = Button::new(RichText::new(shown).text_style(TextStyle::Small));
            let button = button.right_text(share).wrap_mode(TextWrapMode::Truncate);
            let button = button.frame_when_inactive(false);
            let size = Vec2::new(ui.available_width(), 28.0);
            let response = ui.add(button.min_size(size));
            let name = strings::passage(rank + 1, &quote, passage.weight);
            response.widget_info(|| {
                eframe::egui::WidgetInfo::labeled(eframe::egui::Role::Button, true, &name)
            });
            if response.on_hover_text(&quote).clicked() {
                actions.push(Action::ShowPassage(place.at, reply, rank));
            }
        }
    });
}

fn buttons(ui: &mut Ui, place: &Place<'_>, actions: &mut Vec<Action>) {
    let answered = place.exchange.replies.iter().find(|reply| reply.answer.is_some());
    if place.exchange.replies.iter().any(|reply| reply.task.is_some()) {
        return;
    }
    let is_compared = place.exchange.replies.iter().any(|reply| reply.attention == Attention::Full);
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing.x = WIDE;
        widgets::align_quiet(ui);
        if let Some(reply) = answered
            && ui.add(widgets::quiet(ui, strings::COPY)).clicked()
        {
            actions.push(Action::Copy(reply.shown().to_owned()));
        }
        if ui.add(widgets::quiet(ui, strings::EDIT)).clicked() {
            actions.push(Action::Edit(Some(place.at)));
        }
        if ui.add_enabled(place.can_ask, widgets::quiet(ui, strings::ASK_AGAIN)).clicked() {
            actions.push(Action::AskAgain(place.at));
        }
        let compare = widgets::quiet(ui, strings::COMPARE);
        if !is_compared {
            let compare = ui.add_enabled(place.can_ask, compare);
            if compare.on_hover_text(strings::COMPARE_HELP).clicked() {
                actions.push(Action::Compare(place.at));
            }
        }
    });
}
