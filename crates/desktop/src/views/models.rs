//! Models: those on this computer, those that are suggested, and one that is looked at.

use eframe::egui::{Align, Key, Layout, Margin, ProgressBar, RichText, TextEdit, TextStyle, Ui};

use super::widgets;
use crate::engine::{Machine, ModelSource};
use crate::figures::bytes;
use crate::models::{Fit, LocalModel, Look, Needs, Offer, Pull, SUGGESTED, best, verdict};
use crate::state::{Action, Dialog, EngineState, State};
use crate::strings;
use crate::theme::{self, CONTROL, GAP, TIGHT, WIDE};

/// Width of a small button.
const BUTTON: f32 = 72.0;

/// Draws the page. `size` is how wide and how high it may be.
pub fn show(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    super::widgets::title(ui, strings::MODELS, actions);
    field(ui, state, actions);
    let machine = state.model().map(|model| model.machine);
    let most = (ui.ctx().content_rect().height() - 260.0).max(160.0);
    widgets::scrolled(ui, "models", most, |ui| {
        looked(ui, state, machine.as_ref(), actions);
        ui.add_space(GAP);
        widgets::group(ui, strings::ON_THIS_COMPUTER);
        here(ui, state, machine.as_ref(), actions);
        ui.add_space(WIDE);
        widgets::group(ui, strings::SUGGESTED_MODELS);
        suggested(ui, state, machine.as_ref(), actions);
        ui.add_space(GAP);
        widgets::caption(ui, strings::NETWORK_HELP);
    });
}

fn field(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let label = widgets::group(ui, strings::MODEL_NAME);
    let mut looks = false;
    ui.horizontal(|ui| {
        // Its end is where the buttons of the list below end, beside the bar.
        let width = ui.available_width() - GAP - BUTTON - ui.spacing().item_spacing.x;
        let edit = TextEdit::singleline(&mut state.models.wanted);
        let edit = edit.hint_text(strings::MODEL_HINT).margin(Margin::symmetric(12, 10));
        let response = ui.add_sized([width, CONTROL + TIGHT], edit);
        looks = response.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
        response.labelled_by(label.id);
        let can = !state.models.wanted.trim().is_empty();
        looks |= ui.add_enabled(can, widgets::secondary(strings::FIND_MODEL)).clicked();
    });
    if looks {
        actions.push(Action::Look(state.models.wanted.clone()));
    }
    ui.horizontal(|ui| {
        widgets::align_quiet(ui);
        ui.spacing_mut().item_spacing.x = WIDE;
        for (name, is_folder) in [(strings::CHOOSE_FOLDER, true), (strings::CHOOSE_GGUF, false)] {
            if ui.add(widgets::quiet(ui, name)).clicked() {
                actions.push(Action::ChooseModel(is_folder));
            }
        }
    });
}

fn looked(ui: &mut Ui, state: &State, machine: Option<&Machine>, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    match &state.models.look {
        Look::Nothing => return,
        Look::Asking(name) => widgets::card(ui, |ui| {
            ui.label(name);
            ui.horizontal(|ui| {
                ui.spinner();
                widgets::caption(ui, strings::LOOKING);
            });
            ui.add_space(TIGHT);
            if ui.add(widgets::secondary(strings::CANCEL_LOOK)).clicked() {
                actions.push(Action::CancelLook);
            }
        }),
        Look::Failed(name, why) => widgets::card(ui, |ui| {
            ui.label(name);
            ui.colored_label(palette.bad, strings::sentence(why));
        }),
        Look::Found(offer, pull) => {
            widgets::card(ui, |ui| offered(ui, offer, pull, machine, actions))
        }
    }
    ui.add_space(GAP);
}

fn offered(
    ui: &mut Ui,
    offer: &Offer,
    pull: &Pull,
    machine: Option<&Machine>,
    actions: &mut Vec<Action>,
) {
    ui.spacing_mut().item_spacing.y = TIGHT;
    ui.label(&offer.name);
    let license = offer.license.as_deref();
    widgets::caption(ui, strings::offer(offer.n_files, offer.bytes, offer.present, license));
    verdict_line(ui, &offer.needs, machine);
    ui.add_space(GAP);
    let begin = |ui: &mut Ui, actions: &mut Vec<Action>| {
        let name = if offer.present > 0 { strings::GO_ON } else { strings::DOWNLOAD };
        if widgets::suggested(ui, offer.needs.is_ok(), name).clicked() {
            actions.push(Action::Pull);
        }
    };
    match pull {
        Pull::No => begin(ui, actions),
        Pull::Cancelled => {
            widgets::caption(ui, strings::DOWNLOAD_KEPT);
            begin(ui, actions);
        }
        Pull::Failed(why) => {
            let palette = theme::palette(ui.visuals());
            ui.colored_label(palette.bad, strings::sentence(why));
            widgets::caption(ui, strings::DOWNLOAD_KEPT);
            begin(ui, actions);
        }
        Pull::Running { done, rate, note, is_ending } => {
            let line = strings::pulling(*done, offer.bytes, *rate);
            let share = *done as f32 / offer.bytes.max(1) as f32;
            ui.add(ProgressBar::new(share).desired_height(6.0));
            widgets::caption(ui, &line);
            if let Some(note) = note {
                widgets::caption(ui, note);
            }
            let name = if *is_ending { strings::ENDING } else { strings::CANCEL_DOWNLOAD };
            if ui.add_enabled(!is_ending, widgets::secondary(name)).clicked() {
                actions.push(Action::CancelPull);
            }
        }
        Pull::Here(source) => {
            if ui.add(widgets::primary(ui, strings::USE)).clicked() {
                actions.push(Action::UseModel(source.clone()));
            }
        }
    }
}

/// Whether it fits, in words and in a colour.
fn verdict_line(ui: &mut Ui, needs: &Result<Needs, String>, machine: Option<&Machine>) {
    let palette = theme::palette(ui.visuals());
    match needs {
        Ok(needs) => {
            let verdict = verdict(needs, machine);
            let color = match verdict.fit {
                Fit::Yes => palette.good,
                Fit::Tight => palette.warn,
                Fit::No => palette.bad,
                Fit::Unknown => palette.weak,
            };
            let text = RichText::new(strings::verdict(&verdict)).text_style(TextStyle::Small);
            ui.label(text.color(color)).on_hover_text(strings::verdict_help());
        }
        Err(why) => {
            let text = RichText::new(strings::sentence(why)).text_style(TextStyle::Small);
            ui.label(text.color(palette.bad));
        }
    }
}

/// A row: what it is, and what can be done with it at the right.
fn row(ui: &mut Ui, left: impl FnOnce(&mut Ui), right: impl FnOnce(&mut Ui)) {
    let palette = theme::palette(ui.visuals());
    ui.horizontal(|ui| {
        let buttons = 168.0;
        let width = (ui.available_width() - buttons - GAP).max(120.0);
        ui.allocate_ui_with_layout([width, 44.0].into(), Layout::top_down(Align::Min), |ui| {
            ui.set_width(width);
            ui.spacing_mut().item_spacing.y = 2.0;
            left(ui);
        });
        ui.with_layout(Layout::right_to_left(Align::Center), right);
    });
    let line = ui.available_rect_before_wrap();
    ui.painter().hline(line.x_range(), line.top() - TIGHT, (1.0, palette.line));
}

fn here(ui: &mut Ui, state: &State, machine: Option<&Machine>, actions: &mut Vec<Action>) {
    let used = &state.settings.model;
    let is_gone = state.engine == EngineState::Gone;
    let use_it = |ui: &mut Ui, source: &ModelSource, can: bool, actions: &mut Vec<Action>| {
        if source.path() == used.path() && !is_gone {
            widgets::caption(ui, strings::IN_USE);
        } else {
            let button = ui.add_enabled(can, widgets::secondary(strings::USE));
            let name = format!("{}: {}", strings::USE, source.name());
            button.widget_info(|| {
                eframe::egui::WidgetInfo::labeled(eframe::egui::Role::Button, can, &name)
            });
            if button.clicked() {
                actions.push(Action::UseModel(source.clone()));
            }
        }
    };
    row(
        ui,
        |ui| {
            ui.label(strings::BUILT_IN);
            widgets::caption(ui, strings::BUILT_IN_HELP);
        },
        |ui| use_it(ui, &ModelSource::Embedded, true, actions),
    );
    for model in state.models.here.iter().flatten() {
        let LocalModel { source, bytes: size, needs } = model;
        let left = |ui: &mut Ui| {
            ui.horizontal(|ui| {
                ui.label(source.name());
                if *size > 0 {
                    widgets::caption(ui, bytes(*size));
                }
            });
            verdict_line(ui, needs, machine);
        };
        let is_used = source.path() == used.path();
        row(ui, left, |ui| {
            use_it(ui, source, needs.is_ok(), actions);
            if let (ModelSource::Hub(name, _), false) = (source, is_used) {
                let delete = ui.add(widgets::quiet(ui, strings::DELETE));
                let label = format!("{}: {name}", strings::DELETE);
                delete.widget_info(|| {
                    eframe::egui::WidgetInfo::labeled(eframe::egui::Role::Button, true, &label)
                });
                if delete.clicked() {
                    let dialog = Dialog::DeleteModel(name.clone(), *size);
                    actions.push(Action::ShowDialog(Some(dialog)));
                }
            }
        });
    }
}

fn suggested(ui: &mut Ui, state: &State, machine: Option<&Machine>, actions: &mut Vec<Action>) {
    let first = best(machine).name;
    let is_here =
        |name: &str| state.models.here.iter().flatten().any(|model| model.source.name() == name);
    let mut models: Vec<_> = SUGGESTED.iter().filter(|model| !is_here(model.name)).collect();
    // The one that suits this machine stands first.
    models.sort_by_key(|model| model.name != first);
    for model in models {
        row(
            ui,
            |ui| {
                ui.horizontal(|ui| {
                    ui.label(model.title);
                    widgets::caption(ui, strings::suggested(model.bytes, model.license));
                });
                verdict_line(ui, &Ok(model.needs()), machine);
            },
            |ui| {
                let look = ui.add(widgets::secondary(strings::DETAILS));
                let name = format!("{}: {}", strings::DETAILS, model.title);
                look.widget_info(|| {
                    eframe::egui::WidgetInfo::labeled(eframe::egui::Role::Button, true, &name)
                });
                if look.clicked() {
                    actions.push(Action::Look(model.name.to_owned()));
                }
            },
        );
    }
}
