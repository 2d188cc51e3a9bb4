"""The dashboard: pages for people at the root of the server, rendered by the server.

**How to add a page.** Write one module `routes_NAME.py` and one template `templates/NAME.html`, and add the module to
`MODULES` in `dashboard/site.py`.

    from taskharbor.server.dashboard.pages import Nav, Pages
    from taskharbor.server.dashboard.view import View
    from taskharbor.server.routes import schedules
    from taskharbor.server.tokens import Role

    pages = Pages()

    @pages.page("/schedules", nav=Nav("Schedules", key="s", order=50))
    async def show_schedules(view: View) -> Response:
        found = await view.ask(schedules.list_schedules)      # the handler of REST: its checks, its role, its document
        return view.render("schedules.html", schedules=found.items)

    @pages.action("/schedules/{name:path}/pause", Role.WRITE)  # POST; role and origin are checked
    async def pause_schedule(view: View) -> Response:
        await view.ask(schedules.pause_schedule, params=view.params)
        return view.done(f"Paused the schedule {view.params['name']}.", to=view.url("schedules"))

The template:

    {% extends layout %}                       {# layout.html, or fragments.html for a live update #}
    {% import "parts.html" as parts with context %}
    {% block title %}Schedules{% endblock %}
    {% block main %}
    <h1>Schedules</h1>
    <div id="schedules" data-live>             {# an id and data-live: this part follows the store #}
      <table class="list">
        {% for each in schedules %}
        <tr data-row id="schedule-{{ each.id }}">   {# data-row: j, k, x and Enter #}
          <td><a data-open href="{{ view.url('schedules', each.name) }}">{{ each.name }}</a></td>
          <td>{{ parts.when(each.next_run_at) }}</td>
          <td>{% if view.may("write") %}
            {{ parts.act(view.url("schedules", each.name, "pause"), "Pause") }}
          {% endif %}</td>
        </tr>
        {% endfor %}
      </table>
    </div>
    {% endblock %}

- `pages.page(…, query=Struct)` and `pages.action(…, form=Struct)` check what the browser sends, as REST does.
  `view.query` and `view.form` are then values of that type. An unknown or a mistyped parameter gets 400.
- `view.ask(handler, params=, query=, body=)` asks an operation of REST, so no page has a rule of its own. A live update
  shares the answer with every other tab of the same role for a second; `seconds=5` always shares it, for up to 5 s.
  `view.share(key, seconds, ask)` does that for a function of `taskharbor.views`.
- `view.url("jobs", id, state="dead")` writes an address below the mount, escaped; never write an address by hand.
- No inline script, no `style` attribute, no `on…` attribute: the content security policy refuses them, and a test too.
- Without script the page must read, and every action must work: `parts.act` and `parts.confirm` write plain forms.
- `data-keep` on an element: a live update leaves it alone. Open `<details>`, ticked boxes, forms in use and the focused
  field survive anyway; give repeated elements an `id`, so that an update knows which is which.
- Charts: `parts.chart(id, label, times, series)`, with `{% block scripts %}{{ parts.chart_scripts() }}{% endblock %}`.
"""
