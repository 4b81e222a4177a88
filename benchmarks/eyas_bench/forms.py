"""Example schemas of forms, as services use them, and prompts with the facts to fill in.

Promises: objects are closed; every text, number and list is limited; no prompt contains its schema.
Does not know: which model fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """A schema and prompts, each with the facts for one instance."""

    name: str
    schema: Schema
    prompts: tuple[str, ...]


def _object(properties: Schema, *optional: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _text(most: int = 24) -> Schema:
    return {"type": "string", "maxLength": most}


def _of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _list(items: Schema, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def _whole(most: int, least: int = 0) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _pattern(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


_DATE = _pattern("20[0-9]{2}-[01][0-9]-[0-3][0-9]")
_TIME = _pattern("[0-2][0-9]:[0-5][0-9]")
_TIMESTAMP = _pattern("20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z")
_PHONE = _pattern(r"\+[0-9]{8,12}")
_YES = {"type": "boolean"}

FORMS = (
    Form(
        "order",
        _object(
            {
                "order_reference": _text(),
                "customer": _object({"full_name": _text(), "email_address": _text(32)}),
                "line_items": _list(
                    _object(
                        {
                            "product_name": _text(),
                            "quantity": _whole(99, 1),
                            "unit_price_cents": _whole(99999),
                        }
                    )
                ),
                "currency_code": _of("EUR", "USD", "GBP"),
                "requires_signature_on_delivery": _YES,
            }
        ),
        (
            "Order A-1041 by Ella Berg, ella@berg.net: 2 lamps at 1950 cents in EUR. No signature.",
            "Order Q77 from Omar Reyes, omar@mail.org: 1 table at 45000 cents, 4 chairs at 8900 cents, "
            "paid in USD, to be signed for.",
            "Maria Lopez (maria@lopez.com) orders 12 cups at 300 cents each in GBP, number 5512.",
        ),
    ),
    Form(
        "ticket",
        _object(
            {
                "ticket_id": _pattern("[A-Z]{3}-[0-9]{1,5}"),
                "short_description": _text(40),
                "priority": _of("low", "medium", "high", "critical"),
                "assigned_team": _of("infrastructure", "applications", "security", "service_desk"),
                "affected_components": _list(_text()),
                "is_customer_facing": _YES,
                "estimated_resolution_hours": _whole(999),
            },
            "estimated_resolution_hours",
        ),
        (
            "Ticket NET-221: the mail server is down. High. Infrastructure takes it. Customers see it.",
            "APP-9 says that the login page is slow, medium priority, for the applications team, about "
            "6 hours of work; web and api are affected.",
            "SEC-1340, critical: a password was shared. Security looks at it, no customer sees it.",
        ),
    ),
    Form(
        "shipment",
        _object(
            {
                "trackingNumber": _pattern("[A-Z]{2}[0-9]{6,9}"),
                "carrierName": _text(),
                "shippingAddress": _object(
                    {
                        "streetAndNumber": _text(),
                        "postalCode": _pattern("[0-9]{4,6}"),
                        "city": _text(),
                        "countryCode": _pattern("[A-Z]{2}"),
                    }
                ),
                "shipmentStatus": _of(
                    "label_created", "in_transit", "out_for_delivery", "delivered"
                ),
                "estimatedDeliveryDate": _DATE,
                "weightInGrams": _whole(99999, 1),
            }
        ),
        (
            "Parcel DK492817 goes with Blue Post to Park Road 7, 10115 Berlin, DE. It weighs 900 "
            "grams, is in transit and comes on 2025-03-04.",
            "Fast Line carries FR5512094 to 3 Rue Haute, 69001 Lyon, FR, 2400 grams, out for "
            "delivery, due on 2025-06-18.",
            "Delivered on 2024-12-01: NO331208, 150 grams, by North Mail, to Fjord Street 12, 0150 "
            "Oslo, NO.",
        ),
    ),
    Form(
        "sensor reading",
        _object(
            {
                "deviceIdentifier": _text(),
                "measurementTimestamp": _TIMESTAMP,
                "readings": _object(
                    {
                        "temperatureCelsius": {"type": "integer", "minimum": -60, "maximum": 90},
                        "relativeHumidityPercent": _whole(100),
                        "barometricPressureHectopascal": _whole(1100, 800),
                    }
                ),
                "batteryLevelPercent": _whole(100),
                "connectionStatus": _of("connected", "intermittent", "disconnected"),
            }
        ),
        (
            "Sensor kitchen-4 at 2025-01-09T08:30:00Z: 21 degrees, humidity 45, pressure 1013, battery "
            "88, connected.",
            "garden-1 reported -3 degrees, 80 percent humidity and 995 hectopascal on "
            "2025-02-11T23:05:10Z with 40 percent battery; the connection comes and goes.",
            "roof-12, 2024-07-30T14:00:00Z, 34 degrees, 30 percent, 1008, battery 5, disconnected.",
        ),
    ),
    Form(
        "appointment",
        _object(
            {
                "appointment_type": _of("first_consultation", "follow_up", "treatment"),
                "patient": _object(
                    {"first_name": _text(), "last_name": _text(), "phone_number": _PHONE},
                    "phone_number",
                ),
                "practitioner_name": _text(),
                "appointment_date": _DATE,
                "start_time": _TIME,
                "duration_minutes": {"enum": [15, 30, 45, 60]},
                "reminder_requested": _YES,
            }
        ),
        (
            "Anna Novak sees Dr. Klein for the first time on 2025-05-06 at 09:30, 45 minutes, with a "
            "reminder.",
            "A follow up for Peter Kumar, +4915112345, with Dr. Silva on 2025-08-21 at 14:00, half an "
            "hour, no reminder.",
            "Treatment of Lena Moreau by Dr. Ito, 2025-11-03, 16:15, an hour. Remind her.",
        ),
    ),
    Form(
        "invoice",
        _object(
            {
                "document_type": {"const": "commercial_invoice"},
                "invoice_number": _text(),
                "issue_date": _DATE,
                "payment_due_date": _DATE,
                "billing_party": _object({"company_name": _text(), "vat_number": _text(14)}),
                "total_cents_excluding_tax": _whole(9999999),
                "total_cents_including_tax": _whole(9999999),
                "payment_method": _of("bank_transfer", "credit_card", "direct_debit"),
            }
        ),
        (
            "Invoice 2025-118 of 2025-02-01 to Green Garden Ltd, GB123456, 100 before tax and 120 with "
            "it, by bank transfer until 2025-03-01.",
            "Blue Boat Inc (US99881) gets invoice 77 on 2025-04-15: 250.5 net, 298.1 with tax, credit "
            "card, due 2025-04-30.",
            "INV-9 from 2024-10-10, due on 2024-11-10, for Casa Roja, ES5512: 80 plus tax is 96.8, "
            "direct debit.",
        ),
    ),
    Form(
        "profile",
        _object(
            {
                "displayName": _text(),
                "emailAddress": _text(32),
                "preferredLanguage": _of("english", "french", "german", "spanish"),
                "notificationSettings": _object(
                    {
                        "emailNotificationsEnabled": _YES,
                        "pushNotificationsEnabled": _YES,
                        "weeklySummaryEnabled": _YES,
                    }
                ),
                "accountVisibility": _of("public", "private", "contacts_only"),
                "interests": _list(_text(16)),
            }
        ),
        (
            "I am Daisy, daisy@sea.net. I read English and like music and chess. Only mails please. My "
            "contacts may see me.",
            "Karim Diallo, karim@diallo.fr, French, likes running. All notifications on, public.",
            "Name: Ines. Mail: ines@casa.es. Spanish. Interests: cooking, books. No notifications. "
            "Private.",
        ),
    ),
    Form(
        "incident report",
        _object(
            {
                "incident_identifier": _text(12),
                "severity_level": _of("minor", "moderate", "major"),
                "location_description": _text(32),
                "date_of_occurrence": _DATE,
                "people_involved": _list(_object({"person_name": _text(), "role": _text(16)}), 2),
                "immediate_actions_taken": _text(48),
                "follow_up_required": _YES,
                "injuries_reported": _YES,
            }
        ),
        (
            "Report I-31: on 2025-01-20 Tom Weber, driver, slipped in the yard. Minor, nobody was "
            "hurt. The floor was dried. Nothing else to do.",
            "Major incident X5 in hall 3 on 2025-03-02: the crane hit a wall. Sara Lind, operator, was "
            "hurt. The hall was closed. We will look into it.",
            "2024-09-09, moderate, number 440: smoke in the kitchen, cook Ali Demir opened the "
            "windows. No injuries, follow up needed.",
        ),
    ),
    Form(
        "job posting",
        _object(
            {
                "position_title": _text(),
                "employment_type": _of("full_time", "part_time", "temporary", "internship"),
                "work_location": _object({"city": _text(), "remote_work_allowed": _YES}),
                "annual_salary_range": _object(
                    {"minimum_amount": _whole(999999), "maximum_amount": _whole(999999)}
                ),
                "required_qualifications": _list(_text(24)),
                "application_deadline": _DATE,
            }
        ),
        (
            "We look for a baker in Lisbon, full time, 22000 to 28000 a year, who can bake and drive, "
            "until 2025-07-01. Not remote.",
            "Internship: data analyst, remote or in Berlin, 15000 to 18000, needs Python, apply by "
            "2025-09-30.",
            "Part time teacher in Oslo, 30000 to 36000, with a degree and patience, apply until "
            "2025-02-28.",
        ),
    ),
    Form(
        "flight booking",
        _object(
            {
                "bookingReference": _pattern("[A-Z0-9]{6}"),
                "passengers": _list(
                    _object(
                        {
                            "givenName": _text(),
                            "familyName": _text(),
                            "seatPreference": _of("window", "aisle", "no_preference"),
                        }
                    ),
                    2,
                ),
                "departureAirportCode": _pattern("[A-Z]{3}"),
                "arrivalAirportCode": _pattern("[A-Z]{3}"),
                "scheduledDepartureTime": _TIMESTAMP,
                "cabinClass": _of("economy", "premium_economy", "business"),
                "checkedBaggageCount": _whole(9),
            },
            "checkedBaggageCount",
        ),
        (
            "Booking K4T9QX: Ana Silva, window, from LIS to OSL on 2025-05-01T07:20:00Z, economy, one.",
            "ZZ81PL, Ben Okafor at the aisle and Mia Okafor at the window, LHR to JFK, "
            "2025-12-20T15:45:00Z, business.",
            "Yuki Tanaka flies premium economy from HND to CDG at 2025-03-14T23:10:00Z, any seat, 2 "
            "bags, code 7GH2MM.",
        ),
    ),
    Form(
        "real estate listing",
        _object(
            {
                "listingType": _of("for_sale", "for_rent"),
                "propertyType": _of("apartment", "detached_house", "commercial"),
                "askingPriceInEuros": _whole(9999999),
                "livingAreaSquareMeters": _whole(9999),
                "numberOfBedrooms": _whole(20),
                "numberOfBathrooms": _whole(20),
                "hasParkingSpace": _YES,
                "energyEfficiencyClass": _of("A", "B", "C", "D", "E", "F", "G"),
                "availableFromDate": _DATE,
            },
            "energyEfficiencyClass",
        ),
        (
            "Apartment for rent, 950 euros, 70 square metres, 2 bedrooms, 1 bathroom, no parking, "
            "class B, from 2025-06-01.",
            "We sell a house for 420000: 160 square metres, 4 bedrooms, 2 bathrooms, a garage, from "
            "2025-10-15.",
            "Shop for rent, 2100 euros, 120 square metres, 0 bedrooms, 1 bathroom, parking, class D, "
            "2025-01-01.",
        ),
    ),
    Form(
        "moderation decision",
        _object(
            {
                "contentCategory": _of(
                    "advertisement", "personal_attack", "off_topic", "acceptable"
                ),
                "recommendedAction": _of("approve", "remove", "escalate_to_human_reviewer"),
                "confidenceScorePercent": _whole(100),
                "containsPersonalInformation": _YES,
                "detectedLanguage": _of("english", "french", "german", "spanish", "other"),
                "explanationForModerator": _text(60),
            }
        ),
        (
            "Judge this comment: Buy two lamps and get one free today!",
            "Judge this comment: Peter, you are a fool. I know where you live.",
            "Judge this comment: Thank you, the recipe was wonderful and easy.",
        ),
    ),
)
